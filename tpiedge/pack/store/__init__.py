"""The shard store: a worker's partly filled copies of packs.

`store` finds and keeps them, `copy` is one, `filling` writes into it, `presence` knows which bytes are there,
`holding` which units, `space` how much disk there is; `locks` keeps two processes apart.
"""
