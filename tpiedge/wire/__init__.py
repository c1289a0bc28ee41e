"""Defines the closed set of messages and their encoding. No torch, no sockets.

`codec` encodes the messages of `control`, `data`, `epochs` and `join`; `fields` and `requests` have their parts.
`probing` times links.
"""
