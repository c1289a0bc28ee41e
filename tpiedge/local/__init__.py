"""Runs a whole cluster from this computer. No HTTP, no torch."""
