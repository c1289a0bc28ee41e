"""Makes plans by pure functions of facts.

`needs` tells what a share needs, `arithmetic` its precision. `fractions` divides layers; `solve` cuts them into whole
units. `prediction` predicts times. `capacity` chooses machines, `network` all-reduces and links. `kv_transfer` plans
moves of KV heads.
"""
