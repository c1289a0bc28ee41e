"""The measurements of `tpiedge bench`.

`figures` has what benches share; `kernel_cases` makes operands, `kernel_times` times kernels; `memory_runs` runs memory
settings; `reduce_cluster` has processes that only all-reduce. `serve_cluster` starts a server, `serve_client` sends it
requests, `serve_run` schedules and repeats requests, `serve_figures` sums up answers.
"""
