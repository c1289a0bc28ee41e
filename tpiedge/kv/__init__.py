"""`cache` stores keys and values of a node's own heads. `pages` is rank 0's ledger of pages (pure)."""
