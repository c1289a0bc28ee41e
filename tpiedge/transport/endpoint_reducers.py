"""The native all-reduces of an endpoint, over its one socket or over several: when they may run, and what they leave.

Laws: every message goes to the native side or to Python, and those of one peer in the order of arrival. What a reducer
has kept is handed over to Python before Python receives by itself, and before another reducer runs.
"""

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Protocol

from tpiedge.transport.backlog import Flow, curve_bytes
from tpiedge.transport.native_library import transport_library
from tpiedge.transport.native_reducer import DONE, Exchange, NativeReducer, ReceivedFrame, Reduce
from tpiedge.wire.flat import FLAT_BYTES

# For more than this the copies and the waiting count, and not the calls.
_MOST_BYTES: Final = 1 << 18


class ReduceLink(Protocol):
    """An endpoint with one socket. Called while its lock is held."""

    lock: threading.Lock
    bytes_sent: int
    bytes_received: int
    changes: ctypes.c_uint32
    """Counts the changes of who may be spoken with."""

    @property
    def is_free(self) -> bool:
        """Whether it is open and nothing must be sent or received before."""
        ...

    @property
    def underlying(self) -> int:
        """The address of libzmq's socket."""
        ...

    def way_to(self, name: str) -> tuple[bytes, Flow] | None:
        """The peer's route, empty on a DEALER, and where what comes from it is counted; None where it may not be spoken
        with."""
        ...

    def put_back(self, route: bytes, frame: ReceivedFrame) -> None:
        """Have the frame come out of `recv_frame`, after what was put back before."""
        ...


class EndpointReducers:
    """The native all-reduces of one endpoint, whose owner alone calls this.

    `links`: the endpoint's; only the first of them may change which peers it admits. `link_of`: the link to a peer.
    `lock`: the endpoint's own, taken before those of its links; None where the link's lock is the endpoint's.
    """

    def __init__(
        self,
        links: Sequence[ReduceLink],
        link_of: Callable[[str], ReduceLink | None],
        lock: "threading.Lock | None" = None,
    ) -> None:
        self._links = links
        self._link_of = link_of
        self._locks = _Locks([*([lock] if lock else []), *(link.lock for link in links)])
        self._keeper: _Shape | None = None
        #: Whether `hand_over` is due before anything is sent or received.
        self.keeps = False

    def reducer(self, exchange: Exchange) -> Reduce | None:
        """As in Reduces."""
        library = transport_library()
        links = [link for name in exchange.answers if (link := self._link_of(name)) is not None]
        if library is None or len(links) < len(exchange.answers):
            return None
        native = NativeReducer(library, exchange)
        if not FLAT_BYTES < native.frame_bytes <= _MOST_BYTES:
            return None
        return functools.partial(self._reduce, _Shape(native, links))

    def hand_over(self) -> None:
        """What was received ahead comes out of the links' `recv_frame` next."""
        with self._locks:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._keeper is not None:
            self._keeper.put_back()
            self._keeper.native.release()
            self._keeper, self.keeps = None, False

    def _reduce(self, shape: "_Shape", place: bytes, tensor: int) -> int:
        with self._locks:
            if self._keeper is not shape:
                self._hand_over()
            for link in self._links:
                if not link.is_free:
                    return 0
            native = shape.native
            if native.handle is None and not shape.open(self._links[0]):
                return 0
            sent = native.run(place, tensor)
            if sent >= 0:
                self._leave_off(shape, sent)
                return sent
            self.keeps = sent != DONE
            self._keeper = shape if self.keeps else None
            shape.count_sent()
            shape.count_received()
            return DONE

    def _leave_off(self, shape: "_Shape", sent: int) -> None:
        shape.count_sent(sent)
        if shape.native.used_up(sent):
            shape.count_received()
        shape.put_back()
        self._keeper, self.keeps = None, False
        # The next one is opened for the routes that there are then.
        shape.native.close()


class _Shape:
    """The reducer of one shape, and the counting of its messages. `links`: of each peer, in their order."""

    def __init__(self, native: NativeReducer, links: Sequence[ReduceLink]) -> None:
        self.native: Final = native
        self._links = links
        self._flows: list[Flow] = []
        self._by_socket: dict[int, ReduceLink] = {}
        self._frame_bytes = native.frame_bytes
        self._wire_bytes = curve_bytes(native.frame_bytes)

    def open(self, first: ReduceLink) -> bool:
        """`first` knows of changes."""
        # Read first: a change from here on shows.
        seen = first.changes.value
        ways, self._flows = [], []
        for link, name in zip(self._links, self.native.names, strict=True):
            way = link.way_to(name)
            if way is None:
                return False
            ways.append((link.underlying, way[0]))
            self._flows.append(way[1])
        self._by_socket = {link.underlying: link for link in self._links}
        return self.native.open(ways, first.changes, seen)

    def count_sent(self, count: int | None = None) -> None:
        """The own frame, to the first `count` peers."""
        for link in self._links[:count]:
            link.bytes_sent += self._frame_bytes

    def count_received(self) -> None:
        """A frame of every peer."""
        for link in self._links:
            link.bytes_received += self._frame_bytes
        for flow in self._flows:
            flow.taken += self._wire_bytes

    def put_back(self) -> None:
        """What was received and not used."""
        for socket, route, frame in self.native.received():
            self._by_socket[socket].put_back(route, frame)


class _Locks:
    """All of them, taken in this order."""

    def __init__(self, locks: Sequence[threading.Lock]) -> None:
        self._locks = locks

    def __enter__(self) -> None:
        taken = 0
        try:
            for lock in self._locks:
                lock.acquire()
                taken += 1
        except BaseException:  # a signal, perhaps
            for lock in self._locks[:taken]:
                lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lock in self._locks:
            lock.release()
