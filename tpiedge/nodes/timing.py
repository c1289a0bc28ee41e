"""Intervals and limits of a cluster's liveness."""

from dataclasses import dataclass

__all__ = ["Timing"]


@dataclass(frozen=True)
class Timing:
    """In seconds. A loss is seen within timeout_s + heartbeat_s: below 2 s with these."""

    heartbeat_s: float = 0.3
    timeout_s: float = 1.5
    stall_s: float = 60.0
    start_s: float = 120.0
