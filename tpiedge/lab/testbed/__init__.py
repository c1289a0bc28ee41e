"""Several devices on one Linux computer: namespaces or containers, links with latency, rate, jitter and loss.

`description` is what a testbed is, `reading`, `quantities` and `scenarios` where it comes from, `topology` the ways of
packets. `testbed` brings one of namespaces up and down, with `state`, `namespaces`, `groups`, `processes`, and the
network by `forwarding`: the kernel's (`netem`) or the one of `switch/`. `containers/` is the other way to make one;
`backends` chooses. `running` is a testbed for a program, `enter` a command in it, `measuring` and `status` look at it.
"""
