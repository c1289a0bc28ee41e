"""How nodes add up their partial results.

`communicator` is that of a node alone; `group` is that of several over `peer_channel`, which sorts messages. Star, mesh
and two shots (`direct`) carry out all-reduces, and `fast` is their steady state in one native call. `codec` says how
parts travel, `summation` adds them in the order of ranks, f32 or integers, and blames what is not finite.
"""
