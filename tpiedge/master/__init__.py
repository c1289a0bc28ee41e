"""The master: it knows the cluster's machines, plans for them and queues their requests. No torch.

From messages to served requests: `reception` receives what machines and nodes send, `roster` holds the machines,
`workers` says what each one is and how long one that failed waits, `placement` asks the planner, with --shares for
those who have the `seats`, and has `arranging` order the ranks by what disks lack, `foresight` plans for what may
come, and `assignments` is the planner's answer, `selection` which workers it is made of, `reconciler` compares the
actual state with the desired one, `session_manager` runs a `session` per plan, each with its `epoch` and
`membership`, `rank_zero` owns this machine's own node, `pace` says which machines are slower than they measured,
`switching` when a plan takes the place of the one that serves and what that leaves for it, given the `reading_rate`
of prompts, `outbox` sends without waiting, `request_queue` queues requests, each a `pending_answer` with its
`journal`, clients take `turns` in it, where `remembered` bounds what is known of
them, `request_watch` finds stuck ones, `blame` says which node caused a loss, `history` what became of plans and
machines, and why answers pause, `request_times` how long requests take, each as a `histogram`, `request_lines` how
each request gets on, `reading_progress` how far a prompt is read, `counters` what nodes say of themselves, `snapshot`
makes the `status` that other threads read. `master` puts them together.
"""
