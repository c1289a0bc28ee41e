"""What every node did when: `tracer` records, `collection` joins the parts into a file of Chrome's trace format."""
