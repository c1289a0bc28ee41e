"""The computing process."""
