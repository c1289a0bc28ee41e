"""Runs a whole cluster from this computer, without HTTP and without torch.

`catalogue` finds models and packs by name; `packing` makes packs from checkpoints and GGUF files; `prepare` opens a
model's pack; `layout` makes the plan and chooses the context. `cluster` runs a plan for one command, and collects
answers as text. `service` is a running master, for any thread.
"""
