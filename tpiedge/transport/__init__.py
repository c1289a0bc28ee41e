"""Channels that carry messages: ZeroMQ with CURVE, and queues inside one process."""
