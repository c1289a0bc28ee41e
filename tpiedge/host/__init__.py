"""Describes this computer: its properties and limits (`device`, `process`, `disk_speed`), `addresses` and ports,
private files (`private_file`) and TLS `certificate`. No torch, no network."""
