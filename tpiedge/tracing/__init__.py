"""What every node did when: `tracer` records, `collection` joins, `intervals` and `summary` make figures, `chrome`
writes Chrome's trace format.
"""
