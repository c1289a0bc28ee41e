"""Membership, plans, sessions and the request queue of a cluster. No torch.

`master` receives messages. `roster` holds machines, `workers` the state of each; `selection` picks the machines for a
plan, `placement` asks the planner, `assignments` has the plan, `loss_plans` plans for losses. `reconciler` makes plans,
`session_manager` owns rank 0 and runs a `session` per plan, each with its `epoch`; `switching` says when a plan
replaces the one that serves. `counters` watch nodes, `blame` says which node caused a loss, `history` counts events.
`request_queue` holds requests, `journal` and `request_times` belong to each; `fair_scheduler` picks the next request.
Other threads read `status`."""
