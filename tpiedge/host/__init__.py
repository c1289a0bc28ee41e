"""Describes this computer: limits (`device`, `process`, `disk_speed`), `addresses`, files (`private_file`), TLS
`certificate`. No torch, no network."""
