"""The command line: one short file per verb. Composes the parts, prints, and turns errors into exit statuses.

`entry` and `main` start it; `settings` imports a verb when it runs and sets its flags. Shared flags: `options`,
`sampling_flags`, and with names that a shell completes `model_names`; `listing`: lists and tables. Lines of services:
`master_lines`, `scribe`. Behind verbs: `master_parts`, `reach` (HTTP client),
`local_chat` (answers of a local cluster), `conversation` (both chats), `nearby` (mDNS). All other files are verbs.
"""
