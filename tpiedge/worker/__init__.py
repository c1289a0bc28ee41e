"""A worker's agent, which outlives the nodes that it starts. No torch.

`agent` keeps the link to the master by its `settings`, `preparation` fetches the weights of a coming epoch, `stocking`
those of plans that may come, `way` looks for a master that is silent, `trusted_masters` stores the keys of known
masters, `wording` has the lines for the user.
"""
