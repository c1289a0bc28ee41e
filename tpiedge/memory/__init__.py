"""Decides which weights are in memory, and reads them ahead of use."""
