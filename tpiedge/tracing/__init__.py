"""Traces: `tracer` records one node, `collection` joins all nodes' records into a file of Chrome's trace format."""
