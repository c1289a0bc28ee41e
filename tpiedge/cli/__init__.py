"""The command line, one file per verb: composes the parts, prints, and turns errors into exit statuses.

`entry` and `main` start a command; `settings` imports a verb and sets its flags. `options`, `sampling_flags` and
`model_names` have shared flags; `listing` has tables. `master_lines` and `log_writer` print lines of services.
`master_parts` starts a master, `reach` is its HTTP client, `local_chat` asks a local cluster. `conversation` chats on a
`terminal` with a master or a local cluster. `nearby` finds masters by mDNS. `pulling` shows pulls, and offers them to
`run` and `master`. `service` asks systemd, with the text of `service_unit` and the flags of `service_command`."""
