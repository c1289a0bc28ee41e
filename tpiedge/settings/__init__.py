"""Flag, environment, file, default: the pure part. `schema` knows the settings, `file` reads TOML, `resolve` says which
value counts and where it came from, `check` what is wrong with a file."""
