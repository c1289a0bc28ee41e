"""Describes this computer: its properties and limits (`device`, `process`, `disk_speed`), `addresses` and ports,
private files (`private_file`), TLS `certificate` and the `service_manager` that started this process. No torch, no
network."""
