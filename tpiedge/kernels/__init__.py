"""The arithmetic of a block: products with weights, attention, norms, rotary positions, activations.

Each has a torch implementation and, for few tokens, a native one (`native/`, C++): products with quantised weights for
any number of tokens.
Import the modules themselves: this package imports nothing, so that a process without torch can read
`arithmetic`.
"""
