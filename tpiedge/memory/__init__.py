"""Decides which weights are in memory, and reads them ahead of use.

`sweep` lists pieces of weights and pins some. `residency` (pure) decides which pieces are read and dropped. `scheduler`
carries out these decisions with `loader`, the threads of `reader` and the `arena`. `weights` gives the engine its
weights.
"""
