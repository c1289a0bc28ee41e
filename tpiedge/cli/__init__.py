"""The command line: one short file per verb. Composes the parts, prints, and turns errors into exit statuses.

`entry` and `main` are its start (`settings` imports a verb when it is run, `listing` says what there is and prints
tables). Flags that verbs share: `options`, and names that a shell completes: `model_names`. What services say:
`master_lines` and `scribe`. Behind verbs: `master_parts`, put together, `serving` (the master for the HTTP API),
`reach` (a running master), `local_chat` (answers of a local cluster), `conversation` (both chats), `nearby` (masters
that are found by mDNS). All other files are verbs; `settings` sets the flags of them all, too.
"""
