"""Several devices on one Linux computer: namespaces or containers, linked with latency, rate, jitter and loss.

`description` and `topology` say what a testbed is. `testbed` makes one of namespaces, with `state` and `isolation`;
`running` serves programs, `enter` runs a command in a device. `switch` is the protocol of the process that forwards
packets, `switch_process` runs it, `switch_native` is its core. `containers` makes a testbed with `docker_engine`, with
`container_agent` beside the switch. `measuring` measures either.
"""
