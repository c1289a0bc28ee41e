"""An all-reduce in one native call, for the steady state, as `native/reducer.h` does it on one or several sockets.

Right after a wake-up every call of Python costs several times the usual, so an endpoint that can sends, receives and
adds in one go. It does so only while all goes as foreseen; in any other case it leaves off without having lost
anything, and the caller goes on step by step: what was received and not used comes out of `recv_frame` next.
"""

import ctypes
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from tpiedge.transport.backlog import Flow, curve_bytes
from tpiedge.transport.native_library import PRECISIONS, ReducePlan, TransportLibrary, View, transport_library
from tpiedge.wire.codec import FLAT_BYTES, PLACE_AT, PLACE_BYTES
from tpiedge.wire.fields import SummandPrecision

if TYPE_CHECKING:
    from tpiedge.transport.zeromq_endpoint import ZmqEndpoint

DONE: Final = -1


class Combine(IntEnum):
    """What this endpoint does. A sum of f32 is checked: one that is not finite is left to the caller."""

    TAKE = 0
    """Send the own part, replace it by what comes."""
    EXCHANGE = 1
    """Send the own part to all, wait for theirs, add all in the order of ranks, round the sum as all do."""
    SUM = 2
    """Wait for the parts of all, add them in the order of `answers`, send the sum to all."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """All that the all-reduces of one shape have in common."""

    combine: Combine
    rank: int
    """The rank of this endpoint: its part has this place in the order of summation (SUM: 0)."""
    precision: SummandPrecision
    """How tensors travel, and therefore how every part is rounded, the own one too, and then the sum. i32: tensors are
    of int32, and their sums wrap around."""
    shape: tuple[int, int]
    header: bytes
    """The header of the frame that is sent."""
    answers: Mapping[str, bytes]
    """The header that each peer's frame should have; in the order of ranks. `place` of a call stands at PLACE_AT of
    every header."""
    scratch: bytearray
    """For a tensor of f32 or int32. Overwritten, also in calls that leave off."""


Reduce = Callable[[bytes, int], int]
"""`reduce(place, tensor)`: the all-reduce of the contiguous tensor (f32, or int32 where these travel) at this address,
in place. DONE.

Otherwise the tensor is as it was, and the result says to how many peers, in their order, this rank's frame went. With
Combine.SUM that frame has the sum, which is then in `scratch`, not rounded yet; where it went to no peer, the parts are
yet to be received. Raises nothing: whatever is wrong shows when the caller goes on.
"""


@runtime_checkable
class Reduces(Protocol):
    """An endpoint that can."""

    def reducer(self, exchange: Exchange) -> Reduce | None:
        """None where it cannot here and now, or where it would be of no use."""
        ...


class ReceivedFrame:
    """A copy of what the native side received; has what is used of a `zmq.Frame`."""

    def __init__(self, view: View) -> None:
        self.buffer = memoryview(ctypes.string_at(view.frame, view.frame_bytes))
        self.more = bool(view.more)
        self._properties = {"User-Id": (view.user or b"").decode(), "__fd": (view.descriptor or b"").decode()}

    def __len__(self) -> int:
        return len(self.buffer)

    def get(self, name: str) -> str:
        """User-Id, the name that `admission` gave the connection, or __fd, its file descriptor; "" for another
        property."""
        return self._properties.get(name, "")


class NativeReducer:
    """Opened for the routes and the admissions of a moment, and closed when anything unforeseen has happened.

    Belongs to the owner of the sockets, who calls it only while they are open, and one method at a time.
    """

    def __init__(self, library: TransportLibrary, exchange: Exchange) -> None:
        precision, (rows, columns) = PRECISIONS[exchange.precision], exchange.shape
        self.frame_bytes: Final = FLAT_BYTES + library.dll.tpiedge_wire_bytes(precision, rows, columns)
        self._dll = library.dll
        self._run = library.dll.tpiedge_reducer_run
        self._zmq = library.zmq
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
        """None while it is closed."""
        self._changes = ctypes.c_uint32()

    def open(self, ways: Sequence[tuple[int, bytes]], changes: ctypes.c_uint32, seen: int) -> bool:
        """`ways`: to each peer, a socket and a route, which is empty on a DEALER. `run` does nothing once `changes`
        differs from `seen`."""
        plan = self._plan
        plan.changes, plan.seen = ctypes.addressof(changes), seen
        handle = self._dll.tpiedge_reducer_open(self._zmq, ctypes.byref(plan))
        if not handle:
            return False
        self.handle = handle
        self._finalizer = weakref.finalize(self, self._dll.tpiedge_reducer_close, handle)
        # Must live as long as the handle.
        self._changes = changes
        for (socket, route), header in zip(ways, self._exchange.answers.values(), strict=True):
            if not self._dll.tpiedge_reducer_add_peer(handle, socket, route, len(route), header):
                self.close()
                return False
        return True

    def run(self, place: bytes, tensor: int) -> int:
        """As `Reduce`; below DONE where it is done and has more in `received`, for its next run or for the Python
        path, whichever receives next."""
        return int(self._run(self.handle, place, tensor))

    def received(self) -> Iterator[tuple[int, bytes, ReceivedFrame]]:
        """What was received and not used: socket, route and frame, in the order of arrival.

        Only the last one can be of more than one frame; the rest of it is still in the socket.
        """
        view = View()
        for index in range(self._dll.tpiedge_reducer_received(self.handle)):
            self._dll.tpiedge_reducer_view(self.handle, index, ctypes.byref(view))
            yield view.socket, ctypes.string_at(view.route, view.route_bytes), ReceivedFrame(view)

    def release(self) -> None:
        """Forget what was received."""
        self._dll.tpiedge_reducer_release(self.handle)

    def close(self) -> None:
        """Idempotent; may be opened again."""
        if self.handle is not None:
            self.handle = None
            self._finalizer()


# For more than this the copies and the waiting count, and not the calls.
_MOST_BYTES: Final = 1 << 18


class EndpointReducers:
    """The native all-reduces of one endpoint, over its one socket or over several, whose owner alone calls this.

    Laws: every message goes to the native side or to Python, and those of one peer in the order of arrival. What a
    reducer has kept is handed over to Python before Python receives by itself, and before another reducer runs.

    `links` are the endpoint's, with one lock; only the first of them may change which peers it admits. `link_of` gives
    the link to a peer.
    """

    def __init__(
        self,
        links: Sequence["ZmqEndpoint"],
        link_of: Callable[[str], "ZmqEndpoint | None"],
    ) -> None:
        self._links = links
        self._link_of = link_of
        self._keeper: _Linked | None = None
        #: Whether `hand_over` is due before anything is sent or received.
        self.keeps = False

    def reducer(self, exchange: Exchange) -> Reduce | None:
        """As in Reduces."""
        library = transport_library()
        links = [link for name in exchange.answers if (link := self._link_of(name)) is not None]
        if library is None or len(links) < len(exchange.answers):
            return None
        native = _Linked(library, exchange, links)
        if not FLAT_BYTES < native.frame_bytes <= _MOST_BYTES:
            return None
        return functools.partial(self._reduce, native)

    def hand_over(self) -> None:
        """What was received ahead comes out of the links' `recv_frame` next."""
        with self._links[0].lock:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._keeper is not None:
            self._keeper.put_back()
            self._keeper.release()
            self._keeper, self.keeps = None, False

    def _reduce(self, native: "_Linked", place: bytes, tensor: int) -> int:
        with self._links[0].lock:
            if self._keeper is not native:
                self._hand_over()
            for link in self._links:
                if not link.is_free:
                    return 0
            if native.handle is None and not native.open_links(self._links[0]):
                return 0
            sent = native.run(place, tensor)
            if sent >= 0:
                native.count_sent(sent)
                if sent and native.sums:  # the parts of all peers are in the sum
                    native.count_received()
                native.put_back()
                self._keeper, self.keeps = None, False
                # The next one is opened for the routes that there are then.
                native.close()
                return sent
            self.keeps = sent != DONE
            self._keeper = native if self.keeps else None
            native.count_sent()
            native.count_received()
            return DONE


class _Linked(NativeReducer):
    """A reducer over the link of each peer, in their order, and the counting of its messages."""

    def __init__(self, library: TransportLibrary, exchange: Exchange, links: Sequence["ZmqEndpoint"]) -> None:
        super().__init__(library, exchange)
        self._links = links
        self._flows: list[Flow] = []
        self._by_socket: dict[int, ZmqEndpoint] = {}
        self._wire_bytes = curve_bytes(self.frame_bytes)
        self.sums: Final = exchange.combine is Combine.SUM

    def open_links(self, first: "ZmqEndpoint") -> bool:
        """`first` knows of changes."""
        # Read first: a change from here on shows.
        seen = first.changes.value
        ways, self._flows = [], []
        for link, name in zip(self._links, self._exchange.answers, strict=True):
            way = link.way_to(name)
            if way is None:
                return False
            ways.append((link.underlying, way[0]))
            self._flows.append(way[1])
        self._by_socket = {link.underlying: link for link in self._links}
        return self.open(ways, first.changes, seen)

    def count_sent(self, count: int | None = None) -> None:
        """The own frame, to the first `count` peers."""
        for link in self._links[:count]:
            link.counters.bytes_sent += self.frame_bytes

    def count_received(self) -> None:
        """A frame of every peer."""
        for link in self._links:
            link.counters.bytes_received += self.frame_bytes
        for flow in self._flows:
            flow.taken += self._wire_bytes

    def put_back(self) -> None:
        """What was received and not used."""
        for socket, route, frame in self.received():
            self._by_socket[socket].put_back(route, frame)
