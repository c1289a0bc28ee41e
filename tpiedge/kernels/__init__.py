"""Arithmetic: products with plain and quantised matrices, attention, norm, rotary positions; torch and native (C++).

`library` has the native kernels' threads and says what they compute, and torch else; what is quantised is native alone.
Products: `linear`; `panels` and `panel_matrix` are the layout of quantised weights, `quantise` makes and undoes them,
`grid` has the integers that their sums are. Blocks: `attention_block` (and all layers at once), `ffn`; `attention` and
`elementwise` are their parts. The KV cache: `kv_format` is how a row is stored, `kv_pages` where. `draw` draws tokens
from scores. `shared_library` loads `native/`; `probes` use it, too.
"""
