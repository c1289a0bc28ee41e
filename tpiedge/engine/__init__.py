"""Computes the steps of one node."""
