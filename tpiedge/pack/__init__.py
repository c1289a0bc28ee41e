"""The on-disk form of a model. Needs no torch.

`specs` describes a pack, `share` a node's part of it. `layout` has the places of its bytes, `grids` the steps of its
sums. `manifest` and `hashes` identify it. `reader` opens a pack. `process` packs in a child process. There `writer` and
`panel_writer` write the numbers of a `source`, plain or already `quantised`. `export` writes safetensors. `store` holds
a worker's packs; each is a `shard_copy`. `files` and `dtypes` serve all the others.
"""
