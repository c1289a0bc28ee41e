"""Messages between processes. The only package that knows ZeroMQ.

`endpoint` is the protocol, `messaging` and `framing` say how messages become frames. `inprocess` and `zeromq` (with
`zeromq_endpoint`, `zeromq_options`, `zeromq_spoke`, `context`) implement it; `hub` and `mesh` put several
links behind one endpoint. `keys`, `admission`, `strangers`, `monitor` and `cutting` say who may connect and who is cut;
`backlog` and `wakeup` watch and wake a socket. An all-reduce in one native call: `reduce_interface`,
`endpoint_reducers`, `native_reducer`, `native_library`. `probe` and `features` look at
ZeroMQ.
"""
