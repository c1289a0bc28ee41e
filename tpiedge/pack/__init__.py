"""Reads and writes packs, the on-disk form of models, without torch.

`specs` describes a pack, `share` a node's part of it. `layout` places bytes, `grids` computes the rounding steps of
sums. `manifest` and `hashes` identify content. `reader` opens packs. `process` packs in a child process, where `writer`
and `panel_writer` write the numbers of a `source`, plain or already `quantised`. `export` writes safetensors. `store`
holds a worker's packs, each a `shard_copy`. `files` and `dtypes` serve all modules.
"""
