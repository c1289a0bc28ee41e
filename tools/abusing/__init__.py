"""The parts of `tools/abuse.py`.

`target` is the cluster as abusers see it, `attack` runs an abuser in a process of its own. Abusers: `unauthenticated`
peers, `crowds` of HTTP clients, `members` with a valid token. `client` asks beside them and compares every byte;
`holdings` is what processes hold; `soak` goes through the phases and checks each; `table` prints.
"""
