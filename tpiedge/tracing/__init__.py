"""Records traces."""
