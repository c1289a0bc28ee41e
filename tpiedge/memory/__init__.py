"""Decides which weights are in memory, and reads them ahead of use.

`sweep` lists and pins pieces. `residency` (pure) decides which are read and dropped. `scheduler` makes `loader` and
`reader` (threads) do so in the `arena`. `weights` serves the engine.
"""
