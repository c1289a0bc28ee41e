"""Collective operations over a transport, and the wait that liveness bounds."""
