"""The verbs bench, eval, testbed and trace: one short file each, and one for each of their own verbs.

`eval_options` are flags that two of them share; `testbed_report`, `bench_memory_report` and `bench_serve_report` print.
"""
