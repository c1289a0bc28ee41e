"""Messages between processes. The only package that knows ZeroMQ.

`endpoint` is the protocol, `framing` says how messages become frames. `inprocess` and `zeromq` (with `zeromq_endpoint`,
`zeromq_options`, `zeromq_spoke`) implement it; `hub` and `mesh` put several links behind one endpoint. `keys`,
`admission`, `monitor` and `cutting` say who may connect and who is cut; `backlog` watches a hub's connections, `wakeup`
wakes a socket. An all-reduce in one native call: `endpoint_reducers`, `native_reducer`, `native_library`. `probe` looks
at a port from outside.
"""
