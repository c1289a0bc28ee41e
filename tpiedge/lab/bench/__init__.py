"""The measurements of `tpiedge bench`.

`figures` has what benches share; `kernel_cases` makes operands, `kernel_times` measures them; `memory_runs` runs memory
settings; `reduce_cluster` does all-reduces alone. `serve_cluster` starts a server, `serve_client` asks it, `serve_run`
schedules and repeats requests, `serve_figures` sums them up.
"""
