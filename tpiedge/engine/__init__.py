"""The computation of one node: steps in, hidden states and tokens out.

`runner` has the loops of rank 0 and of the others. `batcher` (pure) plans steps of `sequence`s with guesses of
`drafting`, by what steps take (`step_cost`). `steps` cuts a step into chunks, `forward` computes and reduces them,
`meter` measures. `drawing` makes tokens of hidden states by a `sampler`, in the ranges of `sampling`. `grammars` gets
masks from a `grammar_process` (`grammar_child`); `constraints` prepares them and bounds waits. `carrying` leaves keys
and values for the next epoch.
"""
