"""Computes the steps of one node.

`runner` has the loops of all ranks. `batcher` plans steps of `sequence`s, by `drafting` and `step_cost`. `steps` and
`forward` compute chunks. `drawing` draws tokens with a `sampler`; `sampling` has parameters' ranges. `grammars` gets
masks from a `grammar_process` (`grammar_child`); `constraints` limits the waits. `kv_transfer` saves and restores keys
and values. `meter` measures time.
"""
