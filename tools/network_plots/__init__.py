"""The parts of tools/plot_network.py."""
