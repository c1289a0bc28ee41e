"""Sends messages between processes. Only this package knows ZeroMQ."""
