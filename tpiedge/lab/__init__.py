"""Measurements and emulation. Nothing that serves imports it.

`testbed` emulates devices on one computer; `bench` measures speed, memory and disks; `eval_text` scores a model on a
text, `eval_agreement` compares two models; `traces` reads and `plots` draws what nodes did; `random_weights` makes
models without a checkpoint; `memory_group` limits memory; `verbs` has the commands.
"""
