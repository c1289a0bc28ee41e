"""Answers as logs: append-only events, readers at positions. This package knows neither HTTP nor the master's sockets.

`generation` says what is asked of the cluster, `log` is one answer with the threads that hear it and its reader,
`record` says what it knows of its request and what is kept of it, `shelf` has all answers and bounds what they take.
"""
