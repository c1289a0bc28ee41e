"""What `tpiedge bench` measures: `figures` of repeats, over links that are varied.

`kernel_cases` have the operands, `kernel_times` measures them. `memory_runs` run settings of memory and sum them up.
`reduce_cluster` does nothing but all-reduces. `serve_cluster` starts a server, `serve_client` asks it, `serve_run` says
when and what, and repeats it, `serve_figures` sums it up.
"""
