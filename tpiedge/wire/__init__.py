"""The closed set of messages and how they become bytes. No torch, no sockets.

`messages` lists them; they stand in `control`, `data`, `epochs`, `files`, `join` and `requests`, with values of
`fields`, `weights` and `limits`. `codec` encodes them by their `schema`, `flat` those of the tensor plane with a header
of fixed layout; `tensors` checks what follows it. `probing` measures a link by echoes.
"""
