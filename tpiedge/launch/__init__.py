"""Starting processes that compute. No torch.

`child` starts, watches and ends a process; `bootstrap` and `readiness` are the first lines to it and from it; `standby`
starts one before it is needed, `slot` keeps one running and the next ready; `memory_offer` says how much memory
a machine gives as its limits change; `measurements` stores what one measured, `timing` holds the intervals of liveness.
"""
