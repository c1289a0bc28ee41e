"""Arithmetic in torch and C++: matrix products, attention, norms, rotary positions, quantisation.

`library`: threads of the native kernels. `linear`: products. `panels`, `panel_matrix`: layout of quantised weights;
`quantise` makes and undoes them; `grid`: their integer sums. `attention_block` (and all layers at once), `ffn`: blocks;
`attention`, `elementwise`: their parts. `kv_format`, `kv_pages`: the KV cache. `draw`: samples tokens. `shared_library`
loads `native/`; `probes` measures the computer.
"""
