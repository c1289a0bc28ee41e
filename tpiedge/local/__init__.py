"""Runs a whole cluster from this computer, without HTTP and without torch.

`catalogue` finds what a model's name means, among packs with names; `packing` makes packs of checkpoints and of GGUF
files; `prepare` opens a model's pack, `layout` plans for it and says how long its context may be. A `cluster` runs as
its plan says, for one command, and its events become text. A `service` is a running master, for any thread.
"""
