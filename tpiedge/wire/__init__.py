"""The closed set of messages and how they become bytes. No torch, no sockets.

`codec` lists them and encodes them; they stand in `control`, `data`, `epochs`, `join` and `requests`, with values and
limits of `fields`. `probing` measures a link by echoes.
"""
