"""The on-disk form of a model. No torch.

`specs` says what a pack holds, `share` what a node holds of it, `layout` in which precision and where its bytes lie,
`manifest` and `hashes` what is known of it, `grids` the steps of its sums; `reader` opens one. `process` packs in a
child: `writer` writes blobs, the quantised ones by `panel_writer`, with the numbers of a `source`, which others may
have `quantised`; `export` is the way back. `store` holds a worker's packs, each a `shard_copy`. `files` and `dtypes`
serve them all.
"""
