"""The on-disk form of a model. No torch.

`specs` says what a pack holds, `share` what a node holds of it, `layout` and `storage` where its bytes lie, `manifest`
and `hashes` what is known of it, `grids` the steps of its sums; `reader` opens one. `process` packs in a child:
`writer` writes blobs by `blob_writer` and `panel_writer` into the folder of `target` and keeps the `quality`, with the
numbers of a `source`, of which `ggml` and `int4` have been quantised by others, as `codes`; `export` is the way back.
`store` holds a worker's packs, each a `shard_copy` with its `presence`. `files`, `locks` and `dtypes` serve them all.
"""
