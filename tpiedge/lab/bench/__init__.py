"""The measurements of `tpiedge bench`.

All benches use `figures`. `kernel_cases` makes operands. `kernel_times` times kernels. `memory_runs` measures sizes of
memory. `reduce_cluster` runs processes that only all-reduce. `serve_cluster` starts a server. `serve_client` sends it
requests. `serve_run` schedules the requests. `serve_figures` sums up the answers.
"""
