"""Membership, plans, sessions and the request queue of a cluster. No torch.

`master` receives messages. `roster` has machines. `workers` has the states of machines. `selection` picks machines,
`placement` asks the planner, `assignments` has the plan. `loss_plans` plans for losses. `reconciler` makes plans.
`session_manager` owns rank 0 and runs a `session` per plan. A session has an `epoch`. `switching` says when a plan
replaces another. `turns` says which model is served. `counters` watch nodes, `blame` finds causes of losses, `history`
counts events. `request_queue` has requests. `journal` and `request_times` follow one request. `fair_scheduler` picks
the next request. Other threads read `status`."""
