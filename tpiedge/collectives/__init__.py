"""How nodes add up their partial results.

`communicator` is the protocol, `group` its implementation over `peer_channel` and `inbox`, `local` that of a node
alone. A `job` has three moments; `star`, `mesh`, `two_shot`, `tree` and `ring` are jobs, one file each, and `fast` is
their steady state in one native call. `codec` says how parts travel, `summation` adds them in the order of ranks and
blames what is not finite; `integers` has the laws of parts that are not f32; `shape`, `slices`, `arrays` and `route`
describe what is added and where; `liveness` bounds waits.
"""
