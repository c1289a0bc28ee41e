"""The shard store: a worker's partly filled copies of packs."""
