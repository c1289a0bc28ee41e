"""Which weights are in memory when.

`sweep` is what a node reads for one token, in pieces, and which of them stay; `residency` (pure) says what is read and
released when, `scheduler` is the thread that does it through `loader` and `reader` (O_DIRECT) into the `arena`.
`weights` hands a block's matrices to the engine.
"""
