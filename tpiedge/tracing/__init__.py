"""What every node did when: `tracer` records, `collection` joins, `intervals` and `summary` make figures, `excerpt`
chooses the part that is looked at, `chrome` writes Chrome's trace format.
"""
