"""A model of links, and in-process endpoints whose frames take as long as on such links: networks without root.

The arithmetic is that of the testbed's switch (lab/testbed/native/link.h), nanosecond by nanosecond; change both.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from tests.fakes.inprocess import InProcessHub, InProcessPeer, InProcessSpoke, Receiver

_NS: Final = 1e9
_MASK: Final = (1 << 64) - 1
#: What Linux takes for the least.
LEAST_RETRANSMISSION_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """One direction of a link. None: no limit of the rate, of the queue."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float | None = None
    queue_bytes: int | None = None


class LinkModel:
    """One direction of a link, which takes messages in the order of the times at which they are sent.

    1. A message waits until the messages before it have left the sender. It is dropped if more than `queue_bytes` would
       wait with it; an idle link takes every message, and one without a limit of its rate has no queue.
    2. It leaves, `nbytes / bytes_per_s` later.
    3. It vanishes with the probability `loss`.
    4. It arrives after `latency_s` and a uniform part of `jitter_s`, but never before earlier messages. (A link with
       neither a rate nor jitter has no past, and paths of unlike latency may meet there.)
    """

    def __init__(self, settings: LinkSettings, seed: int = 1) -> None:
        self.settings = settings
        self._random = _Random(seed)
        self._free_ns = 0  # when all that was accepted has left
        self._order_ns = 0  # the last arrival

    def change(self, settings: LinkSettings, now_s: float) -> None:
        """Changes the link now. The bytes in the queue stay; no message, even a later one, is held back longer than the
        new settings explain."""
        now_ns, rates = round(now_s * _NS), (self.settings.bytes_per_s, settings.bytes_per_s)
        if self._free_ns > now_ns:
            self._free_ns = now_ns + _scaled_ns(self._free_ns - now_ns, *rates)
        self.settings = settings
        delay_ns = round(settings.latency_s * _NS) + round(settings.jitter_s * _NS)
        self._order_ns = min(self._order_ns, max(self._free_ns, now_ns) + delay_ns)

    def arrival(self, now_s: float, nbytes: int) -> float | None:
        """Returns when a message sent at `now_s` arrives; None if it is dropped or lost."""
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
        """Returns when the message has left; None where the queue is full."""
        waiting_ns, queue_bytes = self._free_ns - now_ns, self.settings.queue_bytes
        is_full = queue_bytes is not None and waiting_ns * bytes_per_s / _NS + nbytes > queue_bytes
        if waiting_ns > 0 and is_full:
            return None
        start_ns = max(self._free_ns, now_ns)
        self._free_ns = start_ns + int(nbytes * _NS / bytes_per_s + 0.5)
        return self._free_ns


def _scaled_ns(waiting_ns: int, before: float | None, after: float | None) -> int:
    """Returns the rest of a wait at another rate."""
    return 0 if before is None or after is None else int(waiting_ns * before / after + 0.5)


class PathModel:
    """Several links one after another, each of which passes a message on when it has it whole."""

    def __init__(self, links: Sequence[LinkModel]) -> None:
        self.links = tuple(links)

    def arrival(self, now_s: float, nbytes: int) -> float | None:
        """Returns as LinkModel.arrival does. Paths may share links if all reach them in the order of calls."""
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
        """Returns a number in [0, 1)."""
        self._state = mixed = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) * 2.0**-53


@dataclass(slots=True)
class _Flight:
    """A frame on its way; `timeout_s` is how long it takes to be missed."""

    way: "_Way"
    receiver: Receiver
    frame: bytes
    timeout_s: float
    arrived: bool = False


class _Way:
    """A path from one endpoint to another; messages arrive in order."""

    def __init__(self, sender: str, path: PathModel, least_timeout_s: float) -> None:
        self.sender = sender
        self.path = path
        self.timeout_s = max(least_timeout_s, 4 * path.latency_s)
        self.flights: deque[_Flight] = deque()

    def arrive(self, flight: _Flight) -> None:
        """Hand over what waits for nothing any more."""
        flight.arrived = True
        while self.flights and self.flights[0].arrived:
            first = self.flights.popleft()
            first.receiver.deliver(self.sender, first.frame)


class ShapedNetwork:
    """Endpoints that have joined send over `path(sender, receiver)`, which is asked once for each pair of names.

    A frame passes the links of its sender and receiver as one message. A lost or dropped frame is sent again, after the
    longer of twice the round trip and a least time, then twice as long and so on; later frames of the same path wait
    for it. A sender waits for its link, so the links should have no limit of their queue.

    Paths may share links. One thread delivers. Close the network first or last: what is under way then is gone.
    `least_retransmission_s`: a lost frame is not sent again sooner.
    """

    def __init__(
        self,
        path: Callable[[str, str], PathModel | LinkModel],
        least_retransmission_s: float | None = None,
    ) -> None:
        self._path = path
        self._least_s = LEAST_RETRANSMISSION_S if least_retransmission_s is None else least_retransmission_s
        #: How often a frame was lost, so that it is sent again.
        self.lost = 0
        self._ways: dict[tuple[str, str], _Way] = {}
        self._changed = threading.Condition()
        # When, a number against ties, what, and whether it is sent or arrives then.
        self._events: list[tuple[float, int, _Flight, bool]] = []
        self._numbers = count()
        self._closed = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="shaped network", daemon=True)
        self._thread.start()

    def join(self, *endpoints: InProcessHub | InProcessSpoke | InProcessPeer) -> None:
        """Delays what these endpoints send from now on."""
        for endpoint in endpoints:
            endpoint.carry = self._carry

    def close(self) -> None:
        """Idempotent. Raises what a receiver has raised, as every send after it does; once."""
        with self._changed:
            was_closed, self._closed = self._closed, True
            self._changed.notify()
        self._thread.join()
        if self._error is not None and not was_closed:
            raise self._error

    def _carry(self, sender: str, receiver: Receiver, frame: bytes) -> None:
        with self._changed:
            if self._error is not None:
                raise self._error
            way = self._way(sender, receiver.name)
            flight = _Flight(way, receiver, frame, way.timeout_s)
            way.flights.append(flight)
            self._send(flight, time.monotonic())
            self._changed.notify()

    def _way(self, sender: str, receiver: str) -> _Way:
        names = sender, receiver
        if names not in self._ways:
            path = self._path(*names)
            links = PathModel([path]) if isinstance(path, LinkModel) else path
            self._ways[names] = _Way(sender, links, self._least_s)
        return self._ways[names]

    def _send(self, flight: _Flight, now_s: float) -> None:
        """Sends for the first time or again; under the lock."""
        arrival_s = flight.way.path.arrival(now_s, len(flight.frame))
        if arrival_s is None:
            self.lost += 1
            heapq.heappush(self._events, (now_s + flight.timeout_s, next(self._numbers), flight, False))
            flight.timeout_s *= 2
        else:
            heapq.heappush(self._events, (arrival_s, next(self._numbers), flight, True))

    def _run(self) -> None:
        try:
            while (flight := self._next_arrival()) is not None:
                flight.way.arrive(flight)
        except Exception as error:  # a receiver's; who sends or closes next gets it
            with self._changed:
                self._error = error

    def _next_arrival(self) -> _Flight | None:
        """Waits for it; None once the network is closed."""
        with self._changed:
            while not self._closed:
                wait_s = self._events[0][0] - time.monotonic() if self._events else None
                if wait_s is not None and wait_s <= 0:
                    when_s, _, flight, arrives = heapq.heappop(self._events)
                    if arrives:
                        return flight
                    self._send(flight, when_s)
                else:
                    self._changed.wait(wait_s)
        return None
