"""Reads and writes packs, the on-disk form of models, without torch.

`specs` describes a pack. `share` describes a node's part of a pack. `layout` places bytes. `grids` computes the
rounding steps of sums. `manifest` and `hashes` identify content. `reader` opens packs. `process` packs in a child
process. There, `source` and `quantised` read numbers, and `writer` and `panel_writer` write them. `export` writes
safetensors. `store` holds a worker's packs; each is a `shard_copy`. `files` and `dtypes` serve all modules.
"""
