"""What `tpiedge bench` measures and how it is summed up; `cli` has a short file per verb.

`figures`: what all have in common. all-reduces: `reduce_root`, `reduce_leaf`, `links`. Memory: `budgets`, `disk`,
`group`, `streaming`, `steady`, `memory_report`. Kernels: `kernel_cases`, `kernel_memory`, `kernel_times`,
`repeats`. A server: `serve_run` repeats the loads of `serve_load` through `serve_client`, whose bytes `serve_events`
reads and `serve_figures` sums up; `serve_prompts`: what is asked, and when; `serve_cluster`: a server of its own.
"""
