"""Records traces. `tracer` records one node. `collection` joins all nodes' records in one file."""
