"""What tools/plot_network.py is made of."""
