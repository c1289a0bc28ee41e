"""The simplest bound of a wait: a deadline. For clusters inside one process and for tests."""

from tpiedge.clock import Clock
from tpiedge.errors import PeerLost


class DeadlineLiveness:
    """Gives every wait `timeout_s`; a wait is known by its rank and its words."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._wait: tuple[str, float] = ("", 0.0)

    def check(self, rank: int, waiting_for: str) -> None:
        now = self._clock.now()
        if self._wait[0] != waiting_for:
            self._wait = (waiting_for, now)
        if now - self._wait[1] > self._timeout_s:
            raise PeerLost(rank, waiting_for, f"no answer for {self._timeout_s:.1f} s")

    def check_idle(self, _rank: int, _waiting_for: str) -> None:
        self._wait = ("", 0.0)
