"""Computes the steps of one node.

`runner` has the loops of all ranks. `batcher` plans the steps of each `sequence`. `drafting` guesses tokens.
`step_cost` predicts times. `steps` cuts steps into chunks. `forward` computes chunks. `drawing` draws tokens with a
`sampler`. `sampling` has the ranges of sampling parameters. `grammars` gets masks from a `grammar_process`
(`grammar_child`). `constraints` limits the waits for masks. `kv_transfer` saves and restores keys and values. `meter`
measures time.
"""
