"""Does steady-state all-reduces in one native call (`native/reducer.h`).

If anything unforeseen happens, the native side stops. It loses nothing: `recv_frame` returns the unused frames before
others.
"""

import ctypes
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from tpiedge.transport.backlog import Flow, curve_bytes
from tpiedge.transport.native_library import PRECISIONS, ReducePlan, TransportLibrary, View
from tpiedge.wire.codec import FLAT_BYTES, PLACE, PLACE_AT
from tpiedge.wire.fields import SummandPrecision

if TYPE_CHECKING:
    from tpiedge.transport.zeromq_endpoint import ZmqEndpoint

DONE: Final = -1


class Combine(IntEnum):
    """The role of this endpoint. A non-finite f32 sum stops the call."""

    TAKE = 0
    """Send the own part, then replace it by the answer."""
    EXCHANGE = 1
    """Send the own part to all, add all parts in the order of ranks, round the sum."""
    SUM = 2
    """Receive all parts, add them in the order of `answers`, send the sum to all."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Parameters of all-reduces of one shape. Parts and sum are rounded to `precision`. Sums of i32 wrap around. A
    call writes its place (step, block, chunk, choices) at byte PLACE_AT of each header."""

    combine: Combine
    rank: int  # the own part's place in the sum (SUM: 0)
    precision: SummandPrecision
    shape: tuple[int, int]
    header: bytes  # begins the frame to send
    answers: Mapping[str, bytes]  # the expected headers of peers, in the order of ranks
    scratch: bytearray  # room for a tensor of f32 or int32


Reduce = Callable[[bytes, int], int]
"""`reduce(place, tensor)` all-reduces the contiguous tensor (f32 or int32) at the address `tensor` in place and returns
DONE. If the call stops early, the tensor is unchanged, and the result is how many peers, in order, got this rank's
frame. With Combine.SUM the frame has the sum, unrounded in `scratch`; if the result is 0, some parts have not been
received yet. Never raises."""


class ReceivedFrame:
    """A frame that native code received, with the interface of `zmq.Frame`."""

    def __init__(self, view: View) -> None:
        self.buffer = memoryview(ctypes.string_at(view.frame, view.frame_bytes))
        self.more = bool(view.more)
        self._properties = {"User-Id": (view.user or b"").decode(), "__fd": (view.descriptor or b"").decode()}

    def __len__(self) -> int:
        return len(self.buffer)

    def get(self, name: str) -> str:
        """Returns User-Id (the peer's name), __fd (the file descriptor), or ""."""
        return self._properties.get(name, "")


# After a wake-up a Python call costs several times its usual time.
class NativeReducer:
    """Does all-reduces. All calls must come from the thread that owns the sockets. `links` has a link per peer, in
    the order of `exchange.answers`. Call `open` again when routes or admissions have changed. Call `close` after
    anything unforeseen."""

    def __init__(self, library: TransportLibrary, exchange: Exchange, links: Sequence["ZmqEndpoint"]) -> None:
        rows, columns = exchange.shape
        tensor = PRECISIONS[exchange.precision], rows, columns
        self._dll, self._zmq = library.dll, library.zmq
        self.frame_bytes: Final = FLAT_BYTES + library.dll.tpiedge_wire_bytes(*tensor)
        self._exchange = exchange
        self._sum = (ctypes.c_char * (4 * rows * columns)).from_buffer(exchange.scratch)
        summing = exchange.combine, exchange.rank, *tensor, ctypes.addressof(self._sum)
        self._plan = ReducePlan(*summing, exchange.header, PLACE_AT, PLACE.size)
        self.handle: int | None = None
        self.sums: Final = exchange.combine is Combine.SUM
        self._links = links
        self.peers: Final = len(links)
        self._by_socket = {link.socket.underlying: link for link in links}
        self._flows: list[Flow] = []
        self._wire_bytes = curve_bytes(self.frame_bytes)

    def open(self, first: "ZmqEndpoint") -> bool:
        """Opens the native side. Returns False if a route is missing."""
        # The count is read first: once it grows, `run` does nothing. The counter must live as long as the handle.
        self._changes = first.changes
        self._plan.changes, self._plan.seen = ctypes.addressof(self._changes), self._changes.value
        self._flows.clear()
        self.handle = self._dll.tpiedge_reducer_open(self._zmq, ctypes.byref(self._plan)) or None
        if self.handle is None:
            return False
        self._finalizer = weakref.finalize(self, self._dll.tpiedge_reducer_close, self.handle)
        add_peer = functools.partial(self._dll.tpiedge_reducer_add_peer, self.handle)
        for link, (name, header) in zip(self._links, self._exchange.answers.items(), strict=True):
            found = link.route_to(name)
            if found is None or not add_peer(link.socket.underlying, found[0], len(found[0]), header):
                self.close()
                return False
            self._flows.append(found[1])
        return True

    def run(self, place: bytes, tensor: int) -> int:
        """Implements `Reduce`. Returns -2 instead of DONE if received frames are left for `requeue`."""
        return int(self._dll.tpiedge_reducer_run(self.handle, place, tensor))

    def count_received(self) -> None:
        for link in self._links:
            link.counters.bytes_received += self.frame_bytes
        for flow in self._flows:
            flow.taken += self._wire_bytes

    def requeue(self) -> None:
        """Returns unused frames to their links."""
        view = View()
        for index in range(self._dll.tpiedge_reducer_received(self.handle)):
            self._dll.tpiedge_reducer_view(self.handle, index, ctypes.byref(view))
            route = ctypes.string_at(view.route, view.route_bytes)
            self._by_socket[view.socket].requeue(route, ReceivedFrame(view))
        self._dll.tpiedge_reducer_release(self.handle)

    def close(self) -> None:
        if self.handle is not None:
            self.handle = None
            self._finalizer()
