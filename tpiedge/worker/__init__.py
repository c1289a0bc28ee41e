"""A worker's agent, which outlives the nodes that it starts. No torch.

`agent` keeps the link to the master and starts a node for each epoch; slow work is done in the `background`. `masters`
stores keys and probes the path to a silent master; `wording` has the lines for the user."""
