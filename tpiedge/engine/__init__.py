"""Computes the steps of one node.

`runner` has the loops of rank 0 and of other ranks. `batcher` (pure) plans steps of `sequence`s with the drafts of
`drafting`, by the measured times of `step_cost`. `steps` cuts a step into chunks, `forward` computes and reduces the
chunks, `meter` measures time. `drawing` draws tokens from hidden states with a `sampler`; `sampling` has parameters'
ranges. `grammars` gets masks from a `grammar_process` (`grammar_child`); `constraints` prepares grammars and bounds the
waits for masks. `kv_transfer` saves and restores keys and values between epochs.
"""
