"""What `tpiedge eval` measures: how good a model is at a precision.

`text` is what both verbs read, in windows, of a model and perhaps of another to compare with. `perplexity` asks a
cluster for the text's own log probabilities, without torch. `agreement` compares all logits of two models.
"""
