"""Defines the closed set of messages and their encoding. No torch, no sockets.

`codec` encodes the messages of `control`, `data`, `epochs` and `join`. `probing` times links.
"""
