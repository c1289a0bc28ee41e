"""Membership, plans, sessions and the request queue of a cluster. No torch.

`master` receives messages. `roster` has the machines, `workers` the states of a worker; `selection` picks the machines
for a plan, `placement` asks the planner, `assignments` has the plan, `loss_plans` plans for losses. `reconciler` makes
plans, `session_manager` owns rank 0 and runs a `session` per plan, with an `epoch`; `switching` says when a plan
replaces the serving plan. `counters` watch nodes, `blame` says which node caused a loss, `history` counts events.
`request_queue` has the requests, `journal` and `request_times` follow one request; `fair_scheduler` picks the next
request. Other threads read `status`."""
