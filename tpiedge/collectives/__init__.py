"""Collectives add up the partial results of nodes.

`communicator` is the interface and serves a lone node; `group` serves several over `peer_channel`, which sorts
messages. `direct` has star, mesh and two-shot; `fast` does their steady state in one native call. `codec` encodes
parts, `summation` adds them in the order of ranks and names who sent a value that is not finite.
"""
