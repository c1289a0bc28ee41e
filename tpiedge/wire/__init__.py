"""The closed set of messages and how they become bytes. No torch, no sockets.

`codec` encodes messages of `control`, `data`, `epochs` and `join`, with `fields` and `requests`; `probing` times links.
"""
