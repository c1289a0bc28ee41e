"""The arithmetic of a block: products with weights, attention, norms, rotary positions, activations.

Each has a torch implementation and a native one (`native/`, C++), which computes any number of tokens but in products
with f32 and bf16 weights: those of many tokens are torch's.
Import the modules themselves: this package imports nothing, so that a process without torch can read
`arithmetic`.
"""
