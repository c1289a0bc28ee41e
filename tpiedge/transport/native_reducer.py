"""All-reduces in one native call, for the steady state: `native/reducer.h` on one or several sockets.

Right after a wake-up every Python call costs several times the usual. When anything unforeseen happens the native side
stops without a loss, and `recv_frame` returns first what was received and not used.
"""

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from tpiedge.transport.backlog import Flow, curve_bytes
from tpiedge.transport.native_library import PRECISIONS, ReducePlan, TransportLibrary, View
from tpiedge.wire.codec import FLAT_BYTES, PLACE_AT, PLACE_BYTES
from tpiedge.wire.fields import SummandPrecision

if TYPE_CHECKING:
    from tpiedge.transport.zeromq_endpoint import ZmqEndpoint

DONE: Final = -1


class Combine(IntEnum):
    """The role of this endpoint. A sum of f32 that is not finite is left to the caller."""

    TAKE = 0
    """Send the own part, replace it by the answer."""
    EXCHANGE = 1
    """Send the own part to all, add all parts in the order of ranks, round the sum."""
    SUM = 2
    """Receive all parts, add them in the order of `answers`, send the sum to all."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Parameters that the all-reduces of one shape share."""

    combine: Combine
    rank: int
    """The place of the own part in the order of summation (SUM: 0)."""
    precision: SummandPrecision
    """How tensors travel: all parts and the sum are rounded to it. i32: int32 sums that wrap around."""
    shape: tuple[int, int]
    header: bytes
    """The header of the frame to send."""
    answers: Mapping[str, bytes]
    """The expected header from each peer, in the order of ranks. A call's `place` is at PLACE_AT of every header."""
    scratch: bytearray
    """Room for a tensor of f32 or int32; every call overwrites it."""


Reduce = Callable[[bytes, int], int]
"""`reduce(place, tensor)`: all-reduces the contiguous tensor (f32 or int32) at this address in place; returns DONE.
Otherwise the tensor is unchanged and the result is the number of peers, in order, that got this rank's frame. With
Combine.SUM that frame has the sum, which `scratch` has unrounded; if no peer got it, the parts are still to be
received. Raises nothing."""


class ReceivedFrame:
    """A copy of a natively received frame, with the used part of `zmq.Frame`."""

    def __init__(self, view: View) -> None:
        self.buffer = memoryview(ctypes.string_at(view.frame, view.frame_bytes))
        self.more = bool(view.more)
        self._properties = {"User-Id": (view.user or b"").decode(), "__fd": (view.descriptor or b"").decode()}

    def __len__(self) -> int:
        return len(self.buffer)

    def get(self, name: str) -> str:
        """Returns User-Id (the name from `admission`), __fd (the file descriptor), or ""."""
        return self._properties.get(name, "")


class NativeReducer:
    """All-reduces over the link of each peer, in order. Opened for the present routes and admissions; closed when
    anything unforeseen has happened. Only the owner of the sockets calls it."""

    def __init__(self, library: TransportLibrary, exchange: Exchange, links: Sequence["ZmqEndpoint"]) -> None:
        precision, (rows, columns) = PRECISIONS[exchange.precision], exchange.shape
        self._dll, self._zmq = library.dll, library.zmq
        self._run = library.dll.tpiedge_reducer_run
        self.frame_bytes: Final = FLAT_BYTES + library.dll.tpiedge_wire_bytes(precision, rows, columns)
        self._exchange = exchange
        self._sum = (ctypes.c_char * (4 * rows * columns)).from_buffer(exchange.scratch)
        self._plan = ReducePlan(
            exchange.combine,
            exchange.rank,
            precision,
            rows,
            columns,
            ctypes.addressof(self._sum),
            exchange.header,
            PLACE_AT,
            PLACE_BYTES,
        )
        self.handle: int | None = None
        self.sums: Final = exchange.combine is Combine.SUM
        self._links = links
        self.peers: Final = len(links)
        self._by_socket = {link.underlying: link for link in links}
        self._flows: list[Flow] = []
        self._wire_bytes = curve_bytes(self.frame_bytes)

    def open(self, first: "ZmqEndpoint") -> bool:
        """`run` does nothing once the peers that `first` admits have changed."""
        # Its count is read first: a change from here on shows. It must live as long as the handle.
        self._changes = first.changes
        self._plan.changes, self._plan.seen = ctypes.addressof(self._changes), self._changes.value
        ways = []
        for link, name in zip(self._links, self._exchange.answers, strict=True):
            way = link.way_to(name)
            if way is None:
                return False
            ways.append((link.underlying, *way))
        self._flows = [flow for _socket, _route, flow in ways]
        handle = self._dll.tpiedge_reducer_open(self._zmq, ctypes.byref(self._plan))
        if not handle:
            return False
        self.handle = handle
        self._finalizer = weakref.finalize(self, self._dll.tpiedge_reducer_close, handle)
        for (socket, route, _flow), header in zip(ways, self._exchange.answers.values(), strict=True):
            if not self._dll.tpiedge_reducer_add_peer(handle, socket, route, len(route), header):
                self.close()
                return False
        return True

    def run(self, place: bytes, tensor: int) -> int:
        """Runs as `Reduce`. Returns less than DONE if done and `received` has more, for the next run or for Python."""
        return int(self._run(self.handle, place, tensor))

    def received(self) -> list[tuple[int, bytes, ReceivedFrame]]:
        """Takes out what was received and not used: socket, route and frame, in order of arrival. Only the last message
        can have more frames; they are still in the socket."""
        view, found = View(), []
        for index in range(self._dll.tpiedge_reducer_received(self.handle)):
            self._dll.tpiedge_reducer_view(self.handle, index, ctypes.byref(view))
            route = ctypes.string_at(view.route, view.route_bytes)
            found.append((view.socket, route, ReceivedFrame(view)))
        self._dll.tpiedge_reducer_release(self.handle)
        return found

    def count_received(self) -> None:
        for link in self._links:
            link.counters.bytes_received += self.frame_bytes
        for flow in self._flows:
            flow.taken += self._wire_bytes

    def put_back(self) -> None:
        """Gives what was received and not used to the links, whose `recv_frame` returns it first."""
        for socket, route, frame in self.received():
            self._by_socket[socket].put_back(route, frame)

    def close(self) -> None:
        """Idempotent; may be opened again."""
        if self.handle is not None:
            self.handle = None
            self._finalizer()
