"""The all-reduces of one shape on one socket, as `native/reducer.h` does them."""

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from typing import Final

from tpiedge.transport.native_library import Library, View
from tpiedge.transport.reduction import Combine, Exchange
from tpiedge.wire.flat import FLAT_BYTES

__all__ = ["NativeReducer", "ReceivedFrame"]


class ReceivedFrame:
    """A copy of what the native side received; has what is used of a `zmq.Frame`."""

    def __init__(self, view: View) -> None:
        self.buffer = memoryview(ctypes.string_at(view.frame, view.frame_bytes))
        self.more = bool(view.more)
        self._properties = {"User-Id": (view.user or b"").decode(), "__fd": (view.descriptor or b"").decode()}

    def __len__(self) -> int:
        return len(self.buffer)

    def get(self, name: str) -> str:
        """User-Id, the name that the gatekeeper gave the connection, or __fd, its file descriptor."""
        return self._properties[name]


class NativeReducer:
    """Opened for the routes and the admissions of a moment, and closed when anything unforeseen has happened.

    Belongs to the endpoint of the socket, which calls it only while that is open, and one method at a time.
    """

    def __init__(self, library: Library, exchange: Exchange) -> None:
        self.names: Final = tuple(exchange.answers)
        self.frame_bytes: Final = len(exchange.scratch)
        self._dll = library.dll
        self._run = library.dll.tpiedge_reducer_run
        self._zmq = library.zmq
        self._exchange = exchange
        self._frame = (ctypes.c_char * len(exchange.scratch)).from_buffer(exchange.scratch)
        self.handle: int | None = None
        """None while it is closed."""
        self._changes = ctypes.c_uint32()

    def open(self, socket: int, routes: Sequence[bytes], changes: ctypes.c_uint32, seen: int) -> bool:
        """`routes`: of each peer, empty on a DEALER. `run` does nothing once `changes` differs from `seen`."""
        exchange = self._exchange
        handle = self._dll.tpiedge_reducer_open(
            self._zmq,
            socket,
            exchange.combine,
            ctypes.addressof(self._frame) + FLAT_BYTES,
            self.frame_bytes - FLAT_BYTES,
            exchange.header,
            exchange.place_at,
            exchange.place_bytes,
            ctypes.addressof(changes),
            seen,
        )
        if not handle:
            return False
        self.handle = handle
        self._finalizer = weakref.finalize(self, self._dll.tpiedge_reducer_close, handle)
        # Must live as long as the handle.
        self._changes = changes
        for route, header in zip(routes, exchange.answers.values(), strict=True):
            if not self._dll.tpiedge_reducer_add_peer(handle, route, len(route), header):
                self.close()
                return False
        return True

    def run(self, place: bytes, tensor: int) -> int:
        """As `Reduce`."""
        return int(self._run(self.handle, place, tensor))

    def used(self, sent: int) -> int:
        """How many messages a run used up that left off after sending `sent`."""
        return len(self.names) if sent and self._exchange.combine is Combine.SUM else 0

    def received(self) -> Iterator[tuple[bytes, ReceivedFrame]]:
        """What the last run received and did not use: route and frame, in the order of arrival.

        Only the last one can be of more than one frame; the rest of it is still in the socket.
        """
        view = View()
        for index in range(self._dll.tpiedge_reducer_received(self.handle)):
            self._dll.tpiedge_reducer_view(self.handle, index, ctypes.byref(view))
            yield ctypes.string_at(view.route, view.route_bytes), ReceivedFrame(view)

    def close(self) -> None:
        """Idempotent; may be opened again."""
        if self.handle is not None:
            self.handle = None
            self._finalizer()
