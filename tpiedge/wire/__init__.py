"""Defines the closed set of messages and their encoding, without torch and sockets.

`codec` encodes the messages of `control`, `data`, `epochs` and `join`. `fields` and `requests` define the types of
messages' fields. `probing` measures links.
"""
