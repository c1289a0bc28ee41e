"""Joins the links of a rank, a hub and spokes, into one endpoint.

A native reducer may hold received frames. It returns the frames to their links before Python or another reducer uses
the links. So a peer's messages stay in order.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Final

import zmq

from tpiedge.transport.endpoint import TENSOR, Buffer, Endpoint, EndpointClosed, Unreachable, names_of
from tpiedge.transport.native_library import transport_library
from tpiedge.transport.native_reducer import DONE, Exchange, NativeReducer, Reduce
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.transport.zeromq_endpoint import SLICE_S, ZmqEndpoint
from tpiedge.wire.codec import FLAT_BYTES

# Above this, copies and waits take the time, not calls.
_MOST_BYTES: Final = 1 << 18


class ZmqMesh(Endpoint):
    """Owns `hub` and `spokes` (by peer name). Has no `post`."""

    def __init__(self, name: str, hub: ZmqHub | None, spokes: Mapping[str, ZmqSpoke]) -> None:
        super().__init__(name, TENSOR)
        self.address = hub.address if hub else ""
        self._hub = hub
        self._spokes = dict(spokes)
        # The hub, where there is one, comes first: it alone admits others.
        self._ends: list[ZmqEndpoint] = [*([hub] if hub else []), *self._spokes.values()]
        self.counters = self._ends[0].counters  # a hub's are those of its admission, too
        self._lock = self._ends[0].lock
        self._poller = zmq.Poller()
        for end in self._ends:
            end.counters, end.lock = self.counters, self._lock
            self._poller.register(end.socket, zmq.POLLIN)
        self._next = 0
        self._closed = False
        #: Holds frames received ahead: call `_requeue_frames` before anything else is sent or received.
        self._holder: NativeReducer | None = None

    def send_frame(
        self, frame: Buffer, to: str | Sequence[str] | None = None, timeout_s: float | None = None
    ) -> None:
        if self._holder is not None:
            self._requeue_frames()
        for name in names_of(to):
            self._end(name).send_frame(frame, name, timeout_s)

    def recv_frame(self, timeout_s: float) -> tuple[str, memoryview] | None:
        if self._holder is not None:
            self._requeue_frames()
        if len(self._ends) == 1:  # it waits in the call that reads
            return self._ends[0].recv_frame(timeout_s)
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while True:
                if self._closed:
                    raise EndpointClosed(f"the connection of {self.name} was closed")
                received = self._receive_in_turn()
                if received is not None:
                    return received
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return None
                self._poller.poll(int(min(remaining_s, SLICE_S) * 1000) + 1)

    def reducer(self, exchange: Exchange) -> Reduce | None:
        library = transport_library()
        links = [link for name in exchange.answers if (link := self._spokes.get(name, self._hub)) is not None]
        if library is None or len(links) < len(exchange.answers):
            return None
        native = NativeReducer(library, exchange, links)
        if not FLAT_BYTES < native.frame_bytes <= _MOST_BYTES:
            return None
        return functools.partial(self._reduce, native)

    def _requeue_frames(self) -> None:
        with self._lock:
            if self._holder is not None:
                self._holder.requeue()
                self._holder = None

    def _reduce(self, native: NativeReducer, place: bytes, tensor: int) -> int:
        with self._lock:
            if self._holder is not native:
                self._requeue_frames()
            for end in self._ends:
                if not end.is_free:
                    return 0
            if native.handle is None and not native.open(self._ends[0]):
                return 0
            sent = native.run(place, tensor)
            if sent >= 0:
                self.counters.bytes_sent += sent * native.frame_bytes
                if sent and native.sums:  # the parts of all peers are in the sum
                    native.count_received()
                native.requeue()
                self._holder = None
                # The next call opens it again, for the routes of that time.
                native.close()
                return sent
            self._holder = None if sent == DONE else native
            self.counters.bytes_sent += native.peers * native.frame_bytes
            native.count_received()
            return DONE

    def close(self) -> None:
        self._closed = True
        for end in self._ends:
            end.stop()  # else a wait keeps the lock
        with self._lock:
            for end in self._ends:
                end.close()

    def _receive_in_turn(self) -> tuple[str, memoryview] | None:
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
