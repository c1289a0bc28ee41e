"""The KV cache of a node's own heads: `cache` holds its `pages` (pure), which rank 0 hands out."""
