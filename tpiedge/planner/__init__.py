"""From facts to a plan, as pure functions.

`needs` says what a model needs of a node, `arithmetic` in which precision; `partition` cuts units by
weights, `fractions` and `streaming` by speed, memory and disk; `solve` plans for a computer, `capacity` for a cluster,
by the times of `prediction`; `reasons` says why in words.
`network` predicts all-reduces, `linking` says who connects to whom, `carriage` says which
keys and values travel when plans change.
"""
