"""The parts of tools/bench_peers.py: other software, installed, run under the same limits and measured."""
