"""A worker's agent, which outlives the nodes. Imports no torch."""
