"""Models of the hub: `client` pulls what `listing` names; `model/source.py` finds what was pulled."""
