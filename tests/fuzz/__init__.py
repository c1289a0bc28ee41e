"""Untrusted bytes, made up by the million. `mutation` changes inputs that are in order, as bytes or as the structure
that they hold; `forms` knows those structures; `parsers` lists what reads foreign bytes, with its first inputs and the
errors that it may end with; `examination` checks one input; `campaign` runs many in processes whose memory is limited.
`tools/fuzz.py` is the command. `corpus/NAME` keeps what was once found, and runs in every test."""
