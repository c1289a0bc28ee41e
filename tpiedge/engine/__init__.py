"""The computation of one node: steps in, hidden states and tokens out.

`steps` cuts a step into chunks; `forward` is the forward pass, in which every product is followed by its all-reduce;
`overlap` lets chunks compute while others travel; `fused_blocks` computes a block in one native call where it can.
`head` makes logits, `sampler` draws from them as `sampling` says. `runner` is the loop of a node, `meter` measures it,
`assembly` puts it together.
"""
