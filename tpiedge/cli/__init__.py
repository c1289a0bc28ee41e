"""The command line, one file per verb: composes the parts, prints, and turns errors into exit statuses.

`entry` and `main` start a command; `settings` sets a verb's flags. `options`, `sampling_flags` and `model_names` have
shared flags; `listing` has tables. `master_lines` and `log_writer` print lines of services. `master_parts` starts a
master; `reach` is its HTTP client. `local_chat` asks a local cluster; `conversation` is the chat of both. `nearby`
finds masters."""
