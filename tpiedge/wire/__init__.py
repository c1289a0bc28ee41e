"""Defines the closed set of messages and their encoding, without torch and sockets."""
