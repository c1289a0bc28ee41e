"""The on-disk form of a model. No torch.

`specs` describes a pack, `share` a node's part of it. `layout` has the places of its bytes, `grids` the steps of its
sums. `manifest` and `hashes` identify it. `reader` opens a pack. `process` packs in a child: `writer` and
`panel_writer` write a `source`, plain or `quantised`. `export` writes safetensors. `store` holds a worker's packs, each
a `shard_copy`. `files` and `dtypes` serve them all.
"""
