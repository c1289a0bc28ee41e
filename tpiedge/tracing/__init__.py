"""Traces: `tracer` records one node, `collection` joins all into a file of Chrome's trace format."""
