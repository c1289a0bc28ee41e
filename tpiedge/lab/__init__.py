"""The laboratory: what measures and what imitates. Nothing that serves imports it; the command line names its verbs.

`testbed` emulates devices on one computer. `bench` measures speed, memory and disks. `eval_text` says how well a model
predicts a text, `eval_agreement` what precision costs. `traces` reads what nodes did when, `plots` draws.
`random_weights` are models of any shape without a checkpoint, `memory_group` is a control group with a limit. `verbs`
are bench, eval, testbed and trace.
"""
