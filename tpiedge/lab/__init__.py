"""The laboratory: what measures and what imitates. Nothing that serves imports it; the command line names its verbs.

`testbed` emulates devices on one computer. `bench` measures speed, memory and disks, `evaluation` what precision costs;
`steady_state` says when streaming waits for the disk; `traces` reads what nodes did when, `plots` draws.
`random_weights` are models of any shape without a checkpoint. `verbs` are bench, eval, testbed and trace.
"""
