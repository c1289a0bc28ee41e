"""The KV cache: keys and values of a node's own heads, and rank 0's ledger of pages (pure)."""
