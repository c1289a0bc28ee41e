"""From facts to a plan, as pure functions.

`needs` says what a model needs of a node, `arithmetic` in which precision; `fractions` gives each node a part by speed,
memory and disk, `solve` cuts units by that for a computer, `capacity` picks the machines of a cluster by the times of
`prediction`, and says why. `network` predicts all-reduces and says who connects to whom, `carriage` which keys and
values travel when plans change.
"""
