"""Runs a whole cluster from this computer. No HTTP, no torch.

`catalogue` finds models and packs; `packing` makes packs. `prepare` opens a model's pack. `layout` makes the plan.
`cluster` runs a plan for one command. `distribution` packs this installation. `service` is a running master, for any
thread."""
