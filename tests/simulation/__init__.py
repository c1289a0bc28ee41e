"""A whole cluster in one thread, on a manual clock: whatever happens to it in whatever order, its laws hold.

`formula` says what answers are, `machines` plays workers and nodes, `clients` checks every part of every answer,
`cluster` has the real master among them and looks at the laws, `stories` draws events, plays them and shortens a story
that breaks a law.
"""
