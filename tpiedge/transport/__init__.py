"""Messages between processes. The only package that knows ZeroMQ.

`endpoint` is the interface and frames messages; `zeromq` (with `zeromq_endpoint`) implements it, and `mesh` for several
links. `keys`, `admission`, `monitor` and `cutting` identify, admit, observe and cut peers; `backlog` watches a hub's
connections. `native_reducer`, `native_library`: an all-reduce in one native call. `probe` looks at a port from outside.
"""
