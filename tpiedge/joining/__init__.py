"""Admits workers to a cluster. No torch.

`identity` is a machine's key. A worker joins by a secret (`tokens`), by a code (`pairing`, `pairing_link`), or as one
of the `members`. `enrolment` decides who may join. `registrar` admits workers. `connecting` is the worker's side.
`mdns` finds masters.
"""
