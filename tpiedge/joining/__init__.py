"""Admits workers to a cluster. No torch."""
