"""The HTTP API of the master."""
