"""Several devices on one Linux computer: namespaces or containers, links with latency, rate, jitter and loss.

`description` is what a testbed is, `reading` where it comes from, `topology` the ways of packets. `testbed` brings one
of namespaces up and down, with `state`, `namespaces`, `groups`, and the network by `forwarding`: the kernel's or the
one of `switch/`. `containers/` is the other way to make one; `backends` chooses, and says how one is. `running` is a
testbed for a program, `enter` a command in it, `measuring` looks at it.
"""
