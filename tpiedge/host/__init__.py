"""What this computer is and allows. No torch, no network.

`device` counts processors and memory within control groups and sees when limits change, `process` says what a process
takes and may take, `disk_speed` how fast a disk is; `addresses` reads where to listen and says who does;
`private_file` writes what only its owner reads, `certificate` is by what TLS clients know it.
"""
