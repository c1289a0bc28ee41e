"""What this computer is and allows. No torch, no network.

`device` counts processors and memory within `cgroups`, `memory_limits` sees when limits change, `usage` what a process
takes, `process_limits` what it may take, `disk_speed` how fast a disk is; `memory_group` makes a control group;
`addresses` reads where to listen, `ports` says who does; `private_file` writes what only its owner reads, `certificate`
is by what TLS clients know it.
"""
