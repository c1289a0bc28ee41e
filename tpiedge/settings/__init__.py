"""Where every setting comes from."""
