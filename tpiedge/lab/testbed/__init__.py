"""Emulates devices on one Linux computer, with latency, rate, jitter and loss on their links. Public functions may
raise UserError and ResourceError."""
