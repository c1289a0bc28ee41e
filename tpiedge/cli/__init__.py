"""The command line, with one file per verb. It composes the parts, prints, and turns errors into exit statuses.

`entry` and `main` start a command, `settings` imports its verb and sets its flags. `options`, `sampling_flags` and
`model_names` have shared flags, `listing` has tables. `master_lines` and `log_writer` print lines of services.
`master_parts` starts a master, and `reach` is its HTTP client. `conversation` chats on a `terminal`, with a master or
with a local cluster (`local_chat`). `nearby` finds masters by mDNS. `pulling` pulls missing models. `service` manages
systemd services; `service_unit` writes their units, `service_command` their command lines."""
