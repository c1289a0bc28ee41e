"""Collectives add up the partial results of nodes.

`communicator` is the interface. `group` implements the interface over `peer_channel`. `direct` has star, mesh and
two-shot. `fast` does an all-reduce in one native call. `codec` encodes parts. `summation` adds and checks parts.
"""
