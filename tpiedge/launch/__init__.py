"""Starts processes that compute. Imports no torch.

`child` starts and ends a process. `bootstrap` has the first lines to and from a node. `slot` keeps one node and a fork
server. `offer` has measurements and the memory offer.
"""
