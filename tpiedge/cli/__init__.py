"""The command line: one short file per verb. Composes the parts, prints, and turns errors into exit statuses.

`entry` and `main` are its start (`listing` says what there is and imports a verb when it is run, `configured` takes
flags from settings, which `settings_file` reads, `ending` and `interrupts`). Flags that verbs share: `options`,
`network_options`, `serving_options`, `path_options`, `tls_options`, `types`, and names that a shell completes:
`model_names`. What they have of the laboratory: `laboratory`. What verbs print: `table`, `model_card`, `watching`,
`first_lines`, `scribe`, `recording`, `cluster_words` and `top_screen`. Behind verbs: `master_parts`, put together,
`serving` (the master for the HTTP API), `reach` (a running master) with `trust` and `answer_stream`, `pack_names`
(--name), `chat` and `once` (chat and prompt), `conversation` with `keyboard`, `screen` and `answer_text` (both chats),
`token_file`, `nearby` (masters that are found by mDNS). All other files are verbs.
"""
