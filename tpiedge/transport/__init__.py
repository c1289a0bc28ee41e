"""Messages between processes. The only package that knows ZeroMQ.

`endpoint` is what others use, and how messages become frames. `zeromq` (with `zeromq_endpoint`) implements it;
`mesh` puts several links behind one endpoint. `keys`, `admission`, `monitor` and `cutting` say who may connect and who
is cut; `backlog` watches a hub's connections. An all-reduce in one native call: `native_reducer`, `native_library`.
`probe` looks at a port from outside.
"""
