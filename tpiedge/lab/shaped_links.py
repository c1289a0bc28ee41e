"""In-process endpoints whose frames take as long as links of a model would: networks for tests without root.

A frame passes the links of its sender and receiver as one message. The transport is a reliable one: a frame that is
lost or dropped is sent again, after twice the round trip or a least time, whichever is longer, then twice as long and
so on; what the same sender sends to the same receiver meanwhile waits for it. A sender of this kind waits for its link,
so the links should have no limit of their queue. In-process endpoints of any make can be shaped.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from tpiedge.lab.link_model import LinkModel, PathModel
from tpiedge.transport.inprocess import InProcessHub, InProcessPeer, InProcessSpoke, Receiver

#: What Linux takes for the least.
LEAST_RETRANSMISSION_S: Final = 0.2


@dataclass(slots=True)
class _Flight:
    """A frame on its way; `timeout_s` is how long it takes to be missed."""

    way: "_Way"
    receiver: Receiver
    frame: bytes
    timeout_s: float
    arrived: bool = False


class _Way:
    """From one endpoint to another one, in order."""

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
        """From now on what these send takes its time."""
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
        """For the first time or again; under the lock."""
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
