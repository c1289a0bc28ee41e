"""The common part of hub and spoke over ZeroMQ."""

import contextlib
import ctypes
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

import zmq

from tpiedge.errors import PeerError, UserError
from tpiedge.transport.admission import ZmqContext
from tpiedge.transport.backlog import Flow
from tpiedge.transport.endpoint import (
    SEND_TIMEOUT_S,
    Buffer,
    Endpoint,
    EndpointClosed,
    MalformedMessage,
    Plane,
    Unreachable,
    names_of,
)
from tpiedge.transport.keys import CurveKeys, is_key
from tpiedge.transport.native_reducer import ReceivedFrame

SLICE_S = 0.02
LINGER_MS = 200
_HANDSHAKE_MS = 3000
_RECONNECT_MS = 100
# Plain integers: combining the enum costs 2 us each time.
NOBLOCK = int(zmq.NOBLOCK)
SEND_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
# Frames of the transport itself; an encoded message starts otherwise.
PROBE = b""
DUPLICATE = b"duplicate"

Frame = zmq.Frame | ReceivedFrame
Item = tuple[str, memoryview] | PeerError
"""A sender and its frame, or what went wrong."""


def _configure(link: zmq.Socket[bytes], keys: CurveKeys, plane: Plane) -> None:
    link.curve_publickey = keys.public.encode()
    link.curve_secretkey = keys.secret.encode()
    # A larger frame ends the connection, like a broken link to both sides; an honest sender refuses to send it.
    # A handshake takes up to 4096 bytes, and CURVE adds up to 64 to a frame.
    link.maxmsgsize = max(plane.frame_limit, 4096) + 64
    link.sndhwm = plane.queue_length
    link.rcvhwm = plane.receive_length
    # The kernel finds silently dead connections within 6 s: five probes must be lost, as lossy links often lose two in
    # a row. libzmq's heartbeats stay off: 4.3.5 aborts the process if one is due on a connection that failed while it
    # was not read.
    link.heartbeat_ivl = 0
    link.tcp_keepalive = 1
    link.tcp_keepalive_idle = link.tcp_keepalive_intvl = 1
    link.tcp_keepalive_cnt = 5
    link.tcp_maxrt = 6000
    link.handshake_ivl = _HANDSHAKE_MS
    # The kernel's own retries end minutes apart, but a mended link must be found soon.
    link.connect_timeout = _HANDSHAKE_MS
    link.reconnect_ivl = _RECONNECT_MS
    link.reconnect_ivl_max = 5000
    link.rcvtimeo = int(SLICE_S * 1000)
    link.linger = LINGER_MS


class Wakeup:
    """Interrupts a poll from another thread. `ring` after `close` does nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends = socket.socketpair()
        for end in self._ends:
            end.setblocking(False)

    def fileno(self) -> int:
        return self._ends[0].fileno()

    def ring(self) -> None:
        with self._lock, contextlib.suppress(OSError):  # closed; or full, and ringing already
            self._ends[1].send(b"!")

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._ends[0].recv(4096)

    def close(self) -> None:
        with self._lock:
            for end in self._ends:
                end.close()


class ZmqEndpoint(Endpoint):
    """The base of hub and spoke. `close` is safe during a wait."""

    #: Names, in errors, the addressee of a message without `to`.
    _hub_name = "nobody"
    #: Whether a post to the hub, and all later posts, wait until the hub takes it. A hub has other peers to serve.
    _keeps_posts = False

    def __init__(
        self,
        kind: int,
        name: str,
        keys: CurveKeys,
        plane: Plane,
        context: ZmqContext | None,
        io_threads: int = 1,
    ) -> None:
        if not (is_key(keys.public) and is_key(keys.secret)):
            raise UserError(f"the CURVE keys of {name} are not Z85 text of 40 characters")
        super().__init__(name, plane)
        self._posted: deque[tuple[bytes, str | None]] = deque()
        self._stuck = False  # posts wait until they are taken
        self._held: deque[Item] = deque()
        self.changes = ctypes.c_uint32()
        self._closed = False
        self._woken = False
        #: All ends of a mesh have the same lock.
        self.lock = threading.RLock()
        self._wakeup = Wakeup()
        self._context = context or ZmqContext(io_threads)
        self._owns_context = context is None
        self.socket = self._context.socket(kind)
        _configure(self.socket, keys, plane)
        # The methods of the base class: zmq.Socket's only add options that are not used here.
        base: Any = super(zmq.Socket, self.socket)
        self._send_part, self._recv_part = base.send, base.recv
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)
        self._poller.register(self._wakeup, zmq.POLLIN)

    def send_frame(
        self, frame: Buffer, to: str | Sequence[str] | None = None, timeout_s: float | None = None
    ) -> None:
        with self.lock:
            if self._closed or self._posted:
                self._flush()
            for name in names_of(to):
                if self._stuck or not self._try_send(frame, name):
                    self._deliver(frame, name, SEND_TIMEOUT_S if timeout_s is None else timeout_s)
                self.counters.bytes_sent += len(frame)

    def recv_frame(self, timeout_s: float) -> tuple[str, memoryview] | None:
        deadline = time.monotonic() + timeout_s
        remaining_s = timeout_s
        with self.lock:
            while True:
                if self._closed or self._posted:
                    self._flush()
                # Waiting inside the call that reads saves a poll and an exception per message.
                waits = remaining_s >= SLICE_S and not self._plane.prompt
                item = self._held.popleft() if self._held else self._receive_next(0 if waits else NOBLOCK)
                if isinstance(item, PeerError):
                    raise item
                if item is not None:
                    return item
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return None
                if not waits:
                    wait_s = min(remaining_s, SLICE_S) if self._stuck else remaining_s
                    self._silence(self._poller.poll(int(wait_s * 1000) + 1))
                    if self._woken:
                        self._woken = False
                        return None

    @property
    def is_free(self) -> bool:
        """Whether the endpoint is open, and no posted or held frames wait. Hold the lock."""
        return not (self._closed or self._posted or self._held)

    def route_to(self, name: str) -> tuple[bytes, Flow] | None:
        """Returns an admitted, connected peer's route (empty on a DEALER) and flow, else None."""
        raise NotImplementedError

    def requeue(self, route: bytes, frame: ReceivedFrame) -> None:
        """Makes `recv_frame` return the frame, after frames that were requeued earlier."""
        item = self._sort(route, frame)
        if item is not None:
            self._held.append(item)

    def wake(self) -> None:
        """Ends the present or next wait in `recv`. Thread-safe."""
        self._woken = True
        self._wakeup.ring()

    def _queue(self, frames: Sequence[tuple[bytes, str | None]]) -> None:
        self._posted.extend(frames)
        self._wakeup.ring()

    @property
    def posted(self) -> int:
        return len(self._posted)

    def stop(self) -> None:
        """Ends waits and later calls with EndpointClosed. Thread-safe."""
        self._closed = True
        self._wakeup.ring()

    def close(self) -> None:
        self.stop()
        with self.lock:
            if self.socket.closed:
                return
            self._drain()
            self.socket.close(linger=LINGER_MS)
            self._wakeup.close()
            if self._owns_context:
                self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sort(self, route: bytes, frame: Frame) -> Item | None:
        """Handles a message. Returns None if it is not for the owner."""
        raise NotImplementedError

    def _receive(self, flags: int) -> Item | None:
        """Receives one message. Returns None if it is not for the owner. Raises zmq.Again if no message waits."""
        raise NotImplementedError

    def _try_send(self, frame: Buffer, to: str | None) -> bool:
        """Returns False if the frame cannot leave at once."""
        raise NotImplementedError

    def _wait_to_send(self, timeout_s: float) -> None:
        raise NotImplementedError

    def _idle(self) -> None:
        """Runs when nothing waits to be received."""
        raise NotImplementedError

    def _flush(self) -> None:
        if self._closed:
            raise EndpointClosed(f"the connection of {self.name} was closed")
        if self._posted:
            self._drain()

    def _drain(self) -> None:
        while self._posted:
            frame, to = self._posted[0]
            if self._try_send(frame, to):
                self.counters.bytes_sent += len(frame)
            elif self._keeps_posts and to in (None, self._hub_name):
                self._stuck = True
                return
            self._posted.popleft()
        self._stuck = False

    def _deliver(self, frame: Buffer, to: str | None, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._stuck or not self._try_send(frame, to):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise Unreachable(to or self._hub_name, timeout_s)
            self._wait_to_send(min(remaining_s, SLICE_S))
            self._flush()

    def _silence(self, ready: list[tuple[object, int]]) -> None:
        if any(item is not self.socket for item, _ in ready):
            self._wakeup.silence()

    def _receive_next(self, flags: int) -> Item | None:
        for _ in range(100):
            try:
                item = self._receive(flags)
            except zmq.Again:
                self._idle()
                return None
            if item is not None:
                return item
        return None

    def _received(self, sender: str, frame: Frame) -> Item:
        if frame.more:
            self._skip_rest(frame)
            self.counters.refused += 1
            return MalformedMessage(sender, "more than one frame")
        view = frame.buffer
        self.counters.bytes_received += len(view)
        return sender, view

    def _skip_rest(self, frame: Frame) -> None:
        while frame.more:
            frame = self._recv_part(NOBLOCK, False)
