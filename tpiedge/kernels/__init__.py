"""Computes in torch and C++.

`shared_library` loads `native/`. `library` has the native threads. `linear` multiplies matrices. `quantise` makes
quantised weights. `panels` and `panel_matrix` lay out quantised weights. `grid` sums products. `attention_block` and
`ffn` compute blocks. `attention` and `elementwise` compute parts of blocks. `kv_format` and `kv_pages` lay out the KV
cache. `draw` samples tokens. `probes` measures the computer.
"""
