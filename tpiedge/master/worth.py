"""Whether a faster plan is worth the pause that it costs: a machine without clock or threads.

Nobody knows how long the answers that run will go on, nor who asks next. So a faster plan waits until the time that was
lost by waiting for it equals the time that the pause would take: whatever comes, no more than twice the least is lost
(as whoever rents skis until the rent has reached their price). Without requests nothing is lost by a pause.
"""


class Worth:
    """`now` never decreases from call to call."""

    def __init__(self) -> None:
        self._plan = 0
        self._lost_s = 0.0
        self._looked = 0.0
        self._reached = False

    def reached(self, plan: int, now: float, gain: float, pause_s: float) -> bool:
        """Whether the plan of that number, ready to serve, is worth its pause by now, while requests run. Once it is,
        it stays so, though running answers grow.

        `gain` is the part of the time that it saves; not positive: it is not for its speed that it comes.
        """
        if plan != self._plan:
            self._plan, self._lost_s, self._looked, self._reached = plan, 0.0, now, False
        self._lost_s += max(0.0, gain) * (now - self._looked)
        self._looked = now
        self._reached |= gain <= 0 or self._lost_s >= pause_s
        return self._reached
