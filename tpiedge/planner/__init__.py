"""Makes plans by pure functions of facts.

`needs` predicts a share's memory, disk and time. `arithmetic` checks precisions. `fractions` divides layers among
nodes. `solve` rounds the fractions to whole units. `prediction` predicts times. `capacity` chooses machines. `network`
chooses collectives. `kv_transfer` plans moves of KV heads.
"""
