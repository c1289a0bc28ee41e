"""Intervals and limits of a cluster's liveness, and which silences count."""

from dataclasses import dataclass
from typing import Final

_TIMEOUT_S: Final = 1.5
_ROUND_TRIPS: Final = 8
#: Beyond it, TCP's waits after losses in a row, each twice as long as the one before, pass for a death.
_MUCH_LOSS: Final = 0.01
_PATIENCE: Final = 3


@dataclass(frozen=True)
class Timing:
    """All in seconds. A loss is noticed within timeout_s + heartbeat_s: below 2 s with the defaults."""

    heartbeat_s: float = 0.3
    timeout_s: float = _TIMEOUT_S
    stall_s: float = 60.0
    start_s: float = 120.0

    @staticmethod
    def over(round_trip_s: float, loss: float) -> "Timing":
        """For links of that round trip, where that part of the packets is lost one way."""
        timeout_s = max(_TIMEOUT_S, _ROUND_TRIPS * round_trip_s)
        return Timing(timeout_s=timeout_s * _PATIENCE if loss > _MUCH_LOSS else timeout_s)


class OwnStalls:
    """`heartbeat_s`: from one heartbeat to the next; one that is later than that is late."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self.excuse = False
        """Whether nobody's silence is to be judged until the next heartbeat."""

    def beat(self, late_s: float) -> bool:
        """A heartbeat is sent, so many seconds after it was due. Returns `excuse`."""
        self.excuse = late_s > self._heartbeat_s and not self.excuse
        return self.excuse
