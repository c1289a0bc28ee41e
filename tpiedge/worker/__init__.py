"""A worker's agent, which outlives the nodes. Imports no torch.

`agent` keeps the link to the master and starts a node for each epoch. `background` does slow work. `masters` stores the
keys of masters. `wording` has lines for the user.
"""
