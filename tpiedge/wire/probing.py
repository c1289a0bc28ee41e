"""Measures a link by echoes: a few empty ones, then some with a payload."""

import statistics
from dataclasses import dataclass, field

from tpiedge.wire.epochs import Echo, Probe
from tpiedge.wire.fields import MAX_BLOB, rate_of

_EMPTY = 5
_SHORTEST_S = 1e-6


@dataclass(frozen=True)
class LinkSpeed:
    """A link's speed. `bytes_per_s` counts bytes from the answering peer to this peer."""

    round_trip_s: float
    bytes_per_s: float


@dataclass
class Probing:
    """Measures a link. First send the Probe of `next_probe`. For each Echo, `receive` returns the next Probe to
    send, and at last the LinkSpeed. Times are seconds of the caller's clock."""

    payload_bytes: int = MAX_BLOB
    payloads: int = 1
    epoch: int = 0
    _number: int = 0
    _sent: float = 0.0
    _trips: list[float] = field(default_factory=list)

    def next_probe(self, now: float) -> Probe:
        self._number += 1
        self._sent = now
        return Probe(self.epoch, self._number, self.payload_bytes if self._number > _EMPTY else 0)

    def receive(self, echo: Echo, now: float) -> Probe | LinkSpeed | None:
        """Returns the next Probe or the result; None for the Echo of another Probe."""
        if echo.number != self._number:
            return None
        self._trips.append(max(now - self._sent, _SHORTEST_S))
        if len(self._trips) < _EMPTY + self.payloads:
            return self.next_probe(now)
        self._number = -1
        empty = self._trips[:_EMPTY]
        shortest = min(empty)
        added_s = min(self._trips[_EMPTY:]) - shortest
        noise_s = max(statistics.median(empty) - shortest, _SHORTEST_S)
        return LinkSpeed(shortest, rate_of(len(echo.payload), max(added_s, noise_s)))
