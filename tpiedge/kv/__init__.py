"""The KV cache of a node's own heads (`cache`), and rank 0's ledger of its pages (`pages`, pure)."""
