"""The switch between emulated devices: `process` runs `library` over `ports` as `plan` says; `control` is how it is
asked while it runs."""
