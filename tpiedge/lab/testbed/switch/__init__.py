"""The switch between emulated devices: `process` runs `library` over `ports` as `plan` and `settings` say; `control`
answers what `client` asks."""
