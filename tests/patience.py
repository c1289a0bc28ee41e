"""Deadlines that are promises hold on a machine that does nothing else. Beside other work there is more time."""

import time

import psutil

__all__ = ["patience"]

_LOOK_S = 0.2


def patience() -> float:
    """By how much a deadline grows now: 1 on an idle machine, 3 on one whose processors are all busy."""
    before = psutil.cpu_times()
    time.sleep(_LOOK_S)
    after = psutil.cpu_times()
    idle_s = after.idle - before.idle + getattr(after, "iowait", 0.0) - getattr(before, "iowait", 0.0)
    processors = psutil.cpu_count() or 1
    return 1.0 + 2.0 * min(1.0, max(0.0, 1.0 - idle_s / (processors * _LOOK_S)))
