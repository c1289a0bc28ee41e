"""The KV cache of a node's own heads: `cache` holds it in pages; `pages` (pure, on rank 0) says which page holds what,
and when their memory is given back.
"""
