"""The arithmetic of a block: products with weights, attention, norms, rotary positions, activations.

Each has a torch implementation; the products with few tokens also a native one (`native/`, C++).
Import the modules themselves: this package imports nothing, so that a process without torch can read
`arithmetic`.
"""
