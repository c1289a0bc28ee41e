"""Starts processes that compute. Imports no torch."""
