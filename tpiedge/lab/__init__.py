"""Benchmarks, evaluation and emulated devices. No module that serves imports this package."""
