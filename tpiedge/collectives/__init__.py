"""Collectives add up the partial results of nodes."""
