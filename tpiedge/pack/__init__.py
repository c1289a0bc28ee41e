"""The on-disk form of a model. No torch.

`specs` describes the content of a pack, `share` a node's part of it, `layout` the places of its bytes, `manifest` and
`hashes` what identifies it, `grids` the steps of its sums. `reader` opens a pack. `process` packs in a child: `writer`
and `panel_writer` write the numbers of a `source`, plain or `quantised`. `export` writes safetensors. `store` holds a
worker's packs, each a `shard_copy`. `files` and `dtypes` serve them all.
"""
