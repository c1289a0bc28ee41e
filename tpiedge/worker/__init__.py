"""A worker's agent, which outlives its nodes. No torch.

`agent` keeps the link to the master and starts a node for each epoch. Slow work is done in the `background`. `masters`
stores keys. `wording` has the lines for the user.
"""
