"""Describes this computer. `device`, `process` and `disk_speed` have the computer's properties and limits. `addresses`
has addresses and ports. `private_file` has private files. `certificate` has TLS certificates. `service_manager` talks
to systemd. No torch, no network."""
