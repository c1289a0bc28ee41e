"""The computation of a node: forward pass, sampling, the loop over steps."""
