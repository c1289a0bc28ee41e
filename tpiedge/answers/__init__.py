"""Answers as append-only logs (`log`) that readers follow, with a `record` on disk, and the `shelf` that bounds all.
This package knows neither HTTP nor the master's sockets."""
