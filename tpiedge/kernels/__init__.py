"""Arithmetic: products with plain and quantised matrices, attention, norm, rotary positions; torch and native (C++).

`dispatch` says whether native code or torch computes an operand; what is quantised is native alone. Products: `linear`,
over `library` (native) or `torch_linear`; `panels` and `panel_matrix` are the layout of quantised weights, `quantise`
makes and undoes them, `grid` has the integers that their sums are, `arithmetic` names what is computed in what. Blocks:
`attention_block`, `ffn` and, of all layers, `stack`; `attention`, `norm`, `rope`, `swiglu` are their parts. The KV
cache: `kv_format` is how a row is stored, `kv_pages` where; `torch_attention` reads and writes it where there are no
native kernels. `draw` draws tokens from scores, as `numpy_draw` defines it. `shared_library` loads
`native/`; `probes` use it, too.
"""
