"""How a worker gets into a cluster and is known afterwards. No torch.

`identity` is a machine's key. A worker with a secret gets in by `tokens`, which has the rules, expiry included; one
with a code by `pairing` over `pairing_link`; one that was let in before by `members`. `enrolment` decides, also whether
two machines compute the same numbers, `front_door` acts on it at the master's hubs; `connecting` is the worker's side;
`mdns` is how a master is found without an address.
"""
