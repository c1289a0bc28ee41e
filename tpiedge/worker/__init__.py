"""A worker's agent, which outlives the nodes that it starts. No torch.

`agent` keeps the link to the master and starts a node for each epoch; what takes long it does in the `background`.
`masters` stores the keys of known masters and looks for one that is silent; `wording` has the lines for the user.
"""
