"""The computing processes of a cluster: their supervision, control links and membership."""
