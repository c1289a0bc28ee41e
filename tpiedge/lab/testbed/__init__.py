"""Several devices on one Linux computer: namespaces or containers, links with latency, rate, jitter and loss.

`description` is what a testbed is and where it comes from, `topology` the ways of packets. `testbed` brings one of
namespaces up and down, with `state` and `isolation`; `running` is one for a program, `enter` a command in it. Packets
go through a switch: `switch` is what it is told and asked, `switch_process` runs it, `switch_native` is its core.
`containers` is the other way to make one, with `docker_engine`, and `container_agent` beside the switch. `measuring`
looks at either.
"""
