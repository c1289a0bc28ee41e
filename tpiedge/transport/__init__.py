"""Messages between processes. The only package that knows ZeroMQ.

`endpoint` is the interface and frames messages; `zeromq` (with `zeromq_endpoint`) implements it, and `mesh` joins
several links. `keys`, `admission`, `monitor` and `cutting` identify, admit, observe and cut peers; `backlog` watches a
hub's connections. `native_reducer` and `native_library` do an all-reduce in one call. `probe` looks at a port.
"""
