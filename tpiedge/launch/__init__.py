"""Starts processes that compute. No torch.

`child` starts and ends a process. `bootstrap` has a node's first lines. `slot` keeps one node and a fork server.
`offer` has measurements and the memory offer.
"""
