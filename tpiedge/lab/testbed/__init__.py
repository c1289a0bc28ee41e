"""Several devices on one Linux computer: namespaces or containers, linked with latency, rate, jitter and loss.

`description` and `topology` say what a testbed is. `testbed` makes a testbed of namespaces with `state` and
`isolation`; `running` opens it for programs, `enter` runs a command on a device. `switch_process` is the process that
forwards packets, `switch_native` its core and `switch` its protocol. `containers` makes a testbed with `docker_engine`;
`container_agent` runs beside the switch. `measuring` measures both kinds.
"""
