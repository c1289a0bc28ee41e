"""The computation of one node: steps in, hidden states and tokens out.

`steps` cuts a step into chunks; `forward` is the forward pass, in which every product is followed by its all-reduce;
`overlap` lets chunks compute while others travel; `fused_blocks` computes a block in one native call where it can.
`head` makes logits and embeddings, `sampler` draws from them as `sampling` says. `runner` is the loop of rank 0, with
the `drawing` of what comes of a step, `follower` that of the others, `meter` measures it, `assembly` puts it together.
`grammars` say which tokens an answer may go on with, by processes of their own (`grammar_child`, with a `grammar_link`
to each), or a `late_constraint` with a part of it; `grammar_compiling` shares what is compiled, `grammar_preparation`
has that done before a request comes, and `mask_waits` bounds how long steps wait.

`batcher` (pure) says which tokens of which requests a step computes, each of them a `sequence`.

`carrying` leaves keys and values of running sequences for the next epoch, in files of a `locker`.

`prompt_lookup` guesses tokens from a sequence's own text, `step_cost` learns what a step takes, and `drafting` decides
how many of the guesses the next step takes.
"""
