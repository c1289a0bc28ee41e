"""Serves one language model with several weak machines: tensor parallelism with streamed weights."""

__version__ = "0.1.0"
