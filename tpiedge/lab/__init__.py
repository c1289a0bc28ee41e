"""Benchmarks, evaluation and emulated devices. No module that serves imports this package.

`testbed` emulates devices. `bench` measures speed, memory and disks. `eval_text` scores a model on a text;
`eval_agreement` compares two models. `traces` reads traces. `plots` draws traces and rooflines. `random_weights` makes
models without a checkpoint. `memory_group` limits the memory of processes.
"""
