"""The KV cache of a node's own heads: `cache` holds it, `room` (pure) says when memory is taken and given back."""
