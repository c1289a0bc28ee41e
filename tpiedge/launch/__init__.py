"""Starts processes that compute. No torch. `child` starts, watches and ends a process, `bootstrap` has its first lines
and heartbeat intervals, `slot` keeps one node and a fork server, `offer` has measurements and the memory offer."""
