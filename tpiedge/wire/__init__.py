"""The closed set of messages and how they become bytes. No torch, no sockets.

`codec` encodes those of `control`, `data`, `epochs`, `join` and `requests`; `fields`: types, limits; `probing`: links.
"""
