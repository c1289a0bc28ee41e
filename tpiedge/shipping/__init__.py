"""Bringing a worker the bytes of its share. No torch.

`server` answers at the master, `fetcher` fills the worker's shard store through the `window` of requests under way.
"""
