"""Several devices on one Linux computer: namespaces or containers, linked with latency, rate, jitter and loss.

`description` and `topology` describe a testbed. `testbed` makes namespaces with `state` and `isolation`; `running`
opens them; `enter` runs a command on a device. `switch_process` forwards packets with `switch_native`; `switch` is its
protocol. `containers` uses `docker_engine`; `container_agent` runs beside the switch. `measuring` measures both kinds.
"""
