"""One endpoint over links to several others: a hub for those that connect here, spokes to those that listen."""

import time
from collections.abc import Mapping, Sequence

import zmq

from tpiedge.transport.endpoint import TENSOR, Buffer, Endpoint, EndpointClosed, Unreachable, names_of
from tpiedge.transport.native_reducer import EndpointReducers, Exchange, Reduce
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.transport.zeromq_endpoint import SLICE_S, ZmqEndpoint
from tpiedge.wire.fields import Message


class ZmqMesh(Endpoint):
    """Owns `hub` and `spokes`, by the names of their peers."""

    def __init__(self, name: str, hub: ZmqHub | None, spokes: Mapping[str, ZmqSpoke]) -> None:
        super().__init__(name, TENSOR)
        self.address = hub.address if hub else ""
        self._hub = hub
        self._spokes = dict(spokes)
        self._ends: list[ZmqEndpoint] = [*([hub] if hub else []), *self._spokes.values()]
        self.counters = self._ends[0].counters  # a hub's are those of its admission, too
        self._lock = self._ends[0].lock
        self._poller = zmq.Poller()
        for end in self._ends:
            end.counters, end.lock = self.counters, self._lock
            end.register(self._poller)
        self._next = 0
        self._closed = False
        # The hub, where there is one, comes first: it alone admits others.
        self._reducers = EndpointReducers(self._ends, lambda name: self._spokes.get(name, self._hub))

    def send_frame(
        self, frame: Buffer, to: str | Sequence[str] | None = None, timeout_s: float | None = None
    ) -> None:
        if self._reducers.keeper is not None:
            self._reducers.hand_over()
        for name in names_of(to):
            self._end(name).send_frame(frame, name, timeout_s)

    def recv_frame(self, timeout_s: float) -> tuple[str, memoryview] | None:
        deadline = time.monotonic() + timeout_s
        if self._reducers.keeper is not None:
            self._reducers.hand_over()
        with self._lock:
            while True:
                if self._closed:
                    raise EndpointClosed(f"the connection of {self.name} was closed")
                received = self._take()
                if received is not None:
                    return received
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return None
                self._poller.poll(int(min(remaining_s, SLICE_S) * 1000) + 1)

    def reducer(self, exchange: Exchange) -> Reduce | None:
        return self._reducers.reducer(exchange)

    def post(self, message: Message | Sequence[Message], to: str | None = None) -> None:
        self._end(to).post(message, to)

    @property
    def posted(self) -> int:
        return sum(end.posted for end in self._ends)

    def close(self) -> None:
        self._closed = True
        for end in self._ends:
            end.stop()  # or the lock would be waited for
        with self._lock:
            for end in self._ends:
                end.close()

    def _take(self) -> tuple[str, memoryview] | None:
        """Takes a frame of the links in turn, so that no peer keeps others from being heard."""
        for _ in self._ends:
            end = self._ends[self._next]
            self._next = (self._next + 1) % len(self._ends)
            received = end.recv_frame(0.0)
            if received is not None:
                return received
        return None

    def _end(self, name: str | None) -> ZmqEndpoint:
        end = self._spokes.get(name or "", self._hub)
        if end is None:
            raise Unreachable(str(name), 0.0)
        return end
