"""Which weights are in memory when.

`sweep` is what a node reads for one token, in pieces, and which of them stay; `residency` (pure) says what is read and
released when, `scheduler` has it done by `loader` and `reader` (threads, O_DIRECT) in the `arena`.
`weights` hands a block's matrices to the engine.
"""
