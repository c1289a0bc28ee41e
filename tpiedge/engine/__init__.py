"""The computation of one node: steps in, hidden states and tokens out.

`steps` cuts a step into chunks, some of which compute while others travel; `forward` is the forward pass, in which
every product is followed by its all-reduce; `fused_blocks` computes a block in one native call where it can. `head`
makes logits and embeddings, `sampler` draws from them as `sampling` says. `runner` has the loops of rank 0, with the
`drawing` of what comes of a step, and of the others; `meter` measures them.
`grammars` say which tokens an answer may go on with, each grammar by a `grammar_process` (`grammar_child`);
`constraints` has one compiled before its request comes, keeps parts of an answer to it, and bounds how long steps wait.

`batcher` (pure) says which tokens of which requests a step computes, each of them a `sequence`. `drafting` guesses
tokens and decides how many of them the next step takes, `step_cost` learns what a step takes.

`carrying` leaves keys and values of running sequences for the next epoch.
"""
