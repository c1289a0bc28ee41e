"""Keeps answers as append-only logs of events with readers, in memory and on disk."""
