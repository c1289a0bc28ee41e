"""Makes plans by pure functions of facts.

`needs` tells what a node needs for a share, `arithmetic` which arithmetic weights need. `fractions` divides layers by
speed, memory and disk; `solve` cuts layers into whole units. `prediction` predicts times. `capacity` chooses the
machines of a cluster, and says why; `network` chooses all-reduces and links. `kv_transfer` plans moves of KV heads."""
