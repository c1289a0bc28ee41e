"""Runs a whole cluster from this computer. No HTTP, no torch.

`catalogue` finds models and packs; `packing` makes packs. `prepare` opens a model's pack. `layout` makes the plan.
`cluster` runs a plan for one command. `distribution` packs this installation. `served_models` has the models of a
running master. `service` is a running master for the HTTP API.
"""
