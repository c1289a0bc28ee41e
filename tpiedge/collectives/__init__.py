"""How nodes add up their partial results.

`communicator` is the protocol, `group` its implementation over `peer_channel` and `inbox`, `local` that of a node
alone. A `job` has three moments; star, mesh and two shots (`direct`) carry it out, and `fast` is their steady state in
one native call. `codec` says how parts travel, `summation` adds them in the order of ranks, f32 or integers, and blames
what is not finite; `shape` and `arrays` describe what is added and where.
"""
