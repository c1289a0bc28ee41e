"""Makes plans by pure functions of facts.

`needs` tells what a share needs, and `arithmetic` checks precisions. `fractions` divides layers; `solve` cuts them into
whole units. `prediction` predicts times. `capacity` chooses machines, and `network` chooses collectives. `kv_transfer`
plans moves of KV heads.
"""
