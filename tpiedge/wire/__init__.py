"""The closed set of messages and how they become bytes. No torch, no sockets.

`messages` lists them; they stand in `control`, `data`, `epochs`, `files`, `join` and `requests`, with values of
`fields`, `weights` and `limits`. `codec` encodes them; `tensors` checks what follows the message in a frame. `probing`
measures a link by echoes.
"""
