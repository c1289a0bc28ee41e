"""What a link does to messages: rate, queue, loss, latency and jitter. Pure and seeded: the caller brings the time.

A message passes a link in these steps:

1. It waits until what came before has left the sender. Where more than `queue_bytes` would wait with it, it is
   dropped; an idle link takes everything, and one without a limit of its rate has no queue.
2. It leaves, `nbytes / bytes_per_s` later.
3. With the probability `loss` it vanishes on the way.
4. It arrives after `latency_s` and a uniform part of `jitter_s`, but never before what was sent earlier. (A link with
   neither a rate nor jitter is plain: its past does not matter, and paths of unlike latency may meet there.)

The arithmetic is that of the testbed's switch (lab/testbed/native/link.h), nanosecond by nanosecond; change both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_NS: Final = 1e9
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """One direction of a link. None: no limit of the rate, of the queue."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float | None = None
    queue_bytes: int | None = None


class LinkModel:
    """One direction of a link, which takes messages in the order of the times at which they are sent."""

    def __init__(self, settings: LinkSettings, seed: int = 1) -> None:
        self.settings = settings
        self._random = _Random(seed)
        self._free_ns = 0  # when all that was accepted has left
        self._order_ns = 0  # the last arrival

    def change(self, settings: LinkSettings, now_s: float) -> None:
        """From now on. What waits is as many bytes as before; nothing is held back longer than these settings can
        explain, not even by what is still to arrive."""
        now_ns, rates = round(now_s * _NS), (self.settings.bytes_per_s, settings.bytes_per_s)
        if self._free_ns > now_ns:
            self._free_ns = now_ns + _scaled_ns(self._free_ns - now_ns, *rates)
        self.settings = settings
        delay_ns = round(settings.latency_s * _NS) + round(settings.jitter_s * _NS)
        self._order_ns = min(self._order_ns, max(self._free_ns, now_ns) + delay_ns)

    def arrival(self, now_s: float, nbytes: int) -> float | None:
        """When a message that is sent at `now_s` has arrived; None where it was dropped or lost."""
        arrival_ns = self.arrival_ns(round(now_s * _NS), nbytes)
        return None if arrival_ns is None else arrival_ns / _NS

    def arrival_ns(self, now_ns: int, nbytes: int) -> int | None:
        """`arrival`, without rounding of the time."""
        settings = self.settings
        left_ns = (
            now_ns if settings.bytes_per_s is None else self._serialised(now_ns, nbytes, settings.bytes_per_s)
        )
        if left_ns is None or (settings.loss > 0 and self._random.uniform() < settings.loss):
            return None
        delay_ns = round(settings.latency_s * _NS)
        if jitter_ns := round(settings.jitter_s * _NS):
            delay_ns += int(self._random.uniform() * jitter_ns)
        if settings.bytes_per_s is None and not jitter_ns:
            return left_ns + delay_ns
        self._order_ns = max(self._order_ns, left_ns + delay_ns)
        return self._order_ns

    def _serialised(self, now_ns: int, nbytes: int, bytes_per_s: float) -> int | None:
        """When it has left; None where the queue is full."""
        waiting_ns, queue_bytes = self._free_ns - now_ns, self.settings.queue_bytes
        is_full = queue_bytes is not None and waiting_ns * bytes_per_s / _NS + nbytes > queue_bytes
        if waiting_ns > 0 and is_full:
            return None
        start_ns = max(self._free_ns, now_ns)
        self._free_ns = start_ns + int(nbytes * _NS / bytes_per_s + 0.5)
        return self._free_ns


def _scaled_ns(waiting_ns: int, before: float | None, after: float | None) -> int:
    """How long what waits does so at another rate."""
    return 0 if before is None or after is None else int(waiting_ns * before / after + 0.5)


class PathModel:
    """Several links one after another, each of which passes a message on when it has it whole."""

    def __init__(self, links: Sequence[LinkModel]) -> None:
        self.links = tuple(links)

    def arrival(self, now_s: float, nbytes: int) -> float | None:
        """As of LinkModel. Links may be shared among paths if all reach them in the order of calls."""
        arrival_ns = self.arrival_ns(round(now_s * _NS), nbytes)
        return None if arrival_ns is None else arrival_ns / _NS

    def arrival_ns(self, now_ns: int, nbytes: int) -> int | None:
        """`arrival`, without rounding of the time."""
        at_ns: int | None = now_ns
        for link in self.links:
            if at_ns is None:
                return None
            at_ns = link.arrival_ns(at_ns, nbytes)
        return at_ns

    @property
    def latency_s(self) -> float:
        """The latency of an empty message over idle links, without jitter."""
        return sum(link.settings.latency_s for link in self.links)


class _Random:
    """splitmix64: as small on the native side."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def uniform(self) -> float:
        """In [0, 1)."""
        self._state = mixed = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) * 2.0**-53
