"""Decides which weights are in memory, and reads them ahead of use.

`sweep` lists and pins the pieces that a node reads for one token; `residency` (pure) decides which pieces are read and
dropped; `scheduler` makes `loader` and `reader` (threads) do so in the `arena`. `weights` serves the engine.
"""
