"""Collectives add up the partial results of nodes.

`communicator` is the interface and serves a lone node; `group` serves several nodes over `peer_channel`, which sorts
messages. `direct` has star, mesh and two-shot; `fast` tries an all-reduce in one native call. `codec` encodes parts;
`summation` adds parts in the order of ranks and names the sender of a value that is not finite.
"""
