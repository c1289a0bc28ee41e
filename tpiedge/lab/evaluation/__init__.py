"""What `tpiedge eval` measures: how good a model is at a precision; `cli` has a short file per verb.

`text` is what both read, in windows. `perplexity` asks a cluster for the text's own log probabilities, without torch.
`agreement` compares all logits of two models in this process: `reference` says whether they can be compared, `engine`
computes them, `comparison` sums them up.
"""
