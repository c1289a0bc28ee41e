"""Traces: `tracer` records one node. `collection` joins all records into a file of Chrome's format."""
