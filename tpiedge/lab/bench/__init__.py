"""What `tpiedge bench` measures: `figures` of repeats, `links` that are varied.

`kernel_cases` have the operands, `kernel_memory` says what they take, `kernel_times` measures them. `memory_runs` run
settings of memory, `memory_report` sums them up. `reduce_cluster` does nothing but all-reduces. `serve_cluster` starts
a server, `serve_client` asks it, `serve_load` says when and what, `serve_run` repeats it, `serve_figures` sums it up.
"""
