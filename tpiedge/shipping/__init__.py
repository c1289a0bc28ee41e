"""Sends workers the bytes of their shares, without torch.

`server` runs at the master, `fetcher` at the worker. `window` holds the fetcher's open requests.
"""
