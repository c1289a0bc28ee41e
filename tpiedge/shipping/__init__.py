"""Sends workers the bytes of their shares, without torch."""
