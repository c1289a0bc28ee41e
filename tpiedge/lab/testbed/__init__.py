"""Emulates devices on one Linux computer, with latency, rate, jitter and loss on their links. Public functions may
raise UserError and ResourceError.

- `description` and `topology` describe a testbed. `measuring` measures it.
- `testbed` makes namespaces with `state` and `isolation`. `running` opens them. `enter` runs a command on a device.
- `containers` makes containers with `docker_engine`. `container_agent` runs beside the switch.
- `switch_process` forwards packets with `switch_native`. `switch` has the plan and the protocol.
"""
