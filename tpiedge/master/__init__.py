"""The master: it knows the cluster's machines, plans for them and queues their requests. No torch.

From messages to served requests: `reception` receives what machines and nodes send, `roster` holds the present machines
and `quarantine` the excluded ones, `offer_rate` says which offers count, `remembered` bounds what both know, `debounce`
says when to plan, `placement` asks the planner, with --shares for those who have the `seats`, which a `seat_file`
keeps, and has `arranging` order the ranks by what disks lack, `foresight` plans for losses that may come, `planning`
leaves out who makes it fail, and `assignments` is its answer, `selection` which workers they are made of, `reconciler`
compares the actual state with the desired one, `session_manager` runs a `session` per plan, each with its `epoch` and
`membership`, `rank_zero` owns this machine's own node, `pace` says which machines are slower than they measured, for
`speeds` to note, `switching` and `worth` when a faster plan is worth its pause, given the `reading_rate` of prompts,
`handover` what one session leaves for the next, `retries` when to plan again after a failure, `outbox` sends without
waiting, `request_queue` queues requests, each a `pending_answer` with its `journal`, clients take `turns` in it,
`request_watch` finds stuck ones, `blame` says which node caused a loss, `notices` which workers hear that they are
spare, `pauses` says why answers pause, `request_times` how long requests take and `history` what becomes of plans, each
as a `histogram`, `request_lines` how each request gets on, `reading_progress` how far a prompt is read, and a
`chronicle` what happened last, `counters` keeps what nodes count and `step_timeline` what they did in one step,
`absent` who is missing, `drains` takes users' orders to do without a worker, `what_if` predicts what that would change,
`snapshot` makes the `status` that other threads read. `master` puts them together.
"""
