"""The measurements of `tpiedge bench`.

`figures` is shared. `kernel_cases` makes operands; `kernel_times` times kernels. `memory_runs` runs memory settings.
`reduce_cluster` only all-reduces. `serve_cluster` starts a server, `serve_client` sends it requests, `serve_run`
schedules requests, `serve_figures` sums up answers.
"""
