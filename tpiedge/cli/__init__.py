"""The command line, with one file per verb. It composes the parts, prints, and turns errors into exit statuses.

`entry` and `main` start a command. `settings` imports the verb and sets flags. `options`, `sampling_flags` and
`model_names` have shared flags. `listing` has tables. `master_lines` and `log_writer` print lines of services.
`master_parts` starts a master. `reach` is the HTTP client of a master. `conversation` chats on a `terminal`, with a
master or with a local cluster (`local_chat`). `nearby` finds masters by mDNS. `pulling` pulls missing models. `service`
manages systemd services. `service_unit` writes units. `service_command` writes command lines."""
