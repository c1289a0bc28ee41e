"""Scales promised deadlines by the load: they hold on an idle machine, and a busy one gets more time."""

import time

import psutil

_LOOK_S = 0.2


class Meanwhile:
    """Measures the load since it was made: a deadline may begin on an idle machine and end on a busy one."""

    def __init__(self) -> None:
        self._times, self._began = psutil.cpu_times(), time.monotonic()

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._began

    def deadline_factor(self) -> float:
        """Returns the factor for deadlines: 1 on an idle machine, 3 where all processors were busy."""
        # A processor that waits for a disk is not idle (nor counted so): others need the same disk.
        idle_s = psutil.cpu_times().idle - self._times.idle
        processors = psutil.cpu_count() or 1
        return 1.0 + 2.0 * min(1.0, max(0.0, 1.0 - idle_s / (processors * self.spent_s)))


def deadline_factor() -> float:
    """Returns the factor for deadlines at the present load."""
    look = Meanwhile()
    time.sleep(_LOOK_S)
    return look.deadline_factor()
