"""Sends messages between processes. Only this package knows ZeroMQ.

`endpoint` is the interface; `zeromq` and `zeromq_endpoint` implement it. `mesh` joins several links. `keys` and
`admission` identify and admit peers. `monitor` observes a spoke. `backlog` observes a hub. `cutting` ends connections.
`native_reducer` does an all-reduce in one call of `native_library`. `probe` looks at a port.
"""
