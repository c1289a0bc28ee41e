"""Sends workers the bytes of their shares. No torch.

`server` runs at the master, `fetcher` at the worker. `window` holds the open requests.
"""
