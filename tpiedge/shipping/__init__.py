"""Sends workers the bytes of their shares: `server` at the master, `fetcher` at the worker, which fills its shard store
through the `window` of open requests. No torch."""
