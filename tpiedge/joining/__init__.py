"""How a worker gets into a cluster and is known afterwards. No torch.

`identity` is a machine's key. A worker with a secret gets in by `tokens`, which has the rules, expiry included, and
which `token_store` keeps; one with a code by `pairing` over `pairing_link`; one that was let in before by `members`.
`enrolment` decides, `front_door` opens the master's hubs and acts on it; `connecting` is the worker's side; `announced`
and `mdns` are how a master is found without an address; `numerics` says whether two machines compute the same numbers.
"""
