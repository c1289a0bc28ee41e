"""Starting processes that compute. No torch.

`child` starts, watches and ends a process; `bootstrap` has the first lines to it and from it, and the intervals of
liveness; `slot` keeps one running and a fork server for the next; `offer` says what a machine
measured, and how much memory it gives as its limits change.
"""
