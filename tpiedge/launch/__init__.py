"""Starts processes that compute. No torch. `child` starts, watches and ends a process, `bootstrap` has its first lines
and the intervals of liveness, `slot` keeps one node and a fork server, `offer` measurements and the memory to give."""
