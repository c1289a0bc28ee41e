"""The master: it knows the cluster's machines, plans for them and queues their requests. No torch.

From messages to served requests: `master` receives what machines and nodes send, `roster` holds the machines,
`workers` says what each one is and how long one that failed waits, `placement` asks the planner, `foresight` plans for
what may come, `assignments` is the planner's answer, `selection` which workers it is made of. `reconciler` compares the
actual state with the desired one, `session_manager` owns rank 0 and runs a `session` per plan, each with its `epoch`;
`counters` is what nodes say of themselves, which machines are slower than they measured, and whether requests get on;
`switching` says when a plan takes the place of the one that serves and what that leaves for it. `request_queue` queues
requests, each with its `journal`, clients take `turns` in it, `blame` says which node caused a loss, `history` what
became of plans and machines, and why answers pause, `request_times` how long requests and the reading of prompts take,
`status` is what other threads read.
"""
