"""The on-disk form of a model. No torch.

`specs` says what a pack holds, `share`, `held` and `layout` (with `matrix_layout`, `precision`, `storage`) where its
bytes lie, `manifest`, `hashes` and `identity` what is known of it, `grids` the steps of its sums. `reader` opens one,
`use` keeps it from being removed. `files`, `descriptor` and `dtypes` serve them. `writing/` makes packs of `sources/`;
`store/` holds a worker's copies.
"""
