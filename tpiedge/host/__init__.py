"""Properties and limits of this computer: `device`, `process`, `disk_speed`; `addresses` and ports, `private_file`, and
the TLS `certificate`. No torch, no network."""
