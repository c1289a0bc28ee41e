"""Emulates devices on one Linux computer, with latency, rate, jitter and loss on their links. Public functions may
raise UserError and ResourceError.

- `description` and `topology` describe a testbed. `measuring` measures a testbed.
- `testbed` makes namespaces with `state` and `isolation`. `running` opens a testbed. `enter` runs a command on a
  device.
- `containers` makes containers with `docker_engine`. `container_agent` runs beside the switch.
- `switch_process` forwards packets with `switch_native`. `switch` has the switch's plan and protocol.
"""
