"""Deadlines that are promises hold on a machine that does nothing else. Beside other work there is more time."""

import time

import psutil

_LOOK_S = 0.2


class Meanwhile:
    """A measurement of the load since it was made: a deadline may begin on an idle machine and end on a busy one."""

    def __init__(self) -> None:
        self._times, self._began = psutil.cpu_times(), time.monotonic()

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._began

    def patience(self) -> float:
        """Returns the factor for deadlines: 1 on an idle machine, 3 where all processors were busy."""
        # One that waits for a disk isn't idle (nor counted so): whoever needs the same disk waits as well.
        idle_s = psutil.cpu_times().idle - self._times.idle
        processors = psutil.cpu_count() or 1
        return 1.0 + 2.0 * min(1.0, max(0.0, 1.0 - idle_s / (processors * self.spent_s)))


def patience() -> float:
    """The factor of deadlines for the load now."""
    look = Meanwhile()
    time.sleep(_LOOK_S)
    return look.patience()
