"""The KV cache of a node."""
