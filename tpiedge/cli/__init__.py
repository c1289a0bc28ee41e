"""The command line: one short file per verb. Composes the parts, prints, and turns errors into exit statuses.

`entry` and `main` are its start (`listing` says what there is and imports a verb when it is run, `configured` takes
flags from settings, which `settings_file` reads, and `interrupts`). Flags that verbs share: `options`,
`sampling_options`, `types`, `tls`, and names that a shell completes: `model_names`. What verbs print: `table`,
`model_card`, `master_lines`, `scribe` and `cluster_words`. Behind verbs: `master_parts`, put together, `serving` (the
master for the HTTP API), `reach` (a running master), `local_chat` (prompts and chats of a local cluster),
`conversation` with `terminal` (both chats), `nearby` (masters that are found by mDNS). All other files are verbs.
"""
