"""Reads a model in a GGUF file."""
