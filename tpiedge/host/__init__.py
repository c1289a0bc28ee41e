"""Describes this computer. No torch, no network."""
