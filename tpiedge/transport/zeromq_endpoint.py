"""What the hub and the spoke over ZeroMQ share: options, sending, receiving, waiting and closing."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import zmq

from tpiedge.errors import PeerError, UserError
from tpiedge.transport.context import ZmqContext
from tpiedge.transport.endpoint import (
    Buffer,
    Counters,
    EndpointClosed,
    Envelope,
    MalformedMessage,
    Unreachable,
)
from tpiedge.transport.framing import Plane, frames_of, names_of, read_frames
from tpiedge.transport.keys import CurveKeys, is_key
from tpiedge.transport.wakeup import Wakeup
from tpiedge.wire.messages import Message

__all__ = ["ZmqEndpoint"]

_HANDSHAKE_MS = 3000
_HEARTBEAT_MS = 300
_HEARTBEAT_TIMEOUT_MS = 900
_RECONNECT_MS = 100
_RECONNECT_MAX_MS = 5000
_LINGER_MS = 200
_SEND_TIMEOUT_S = 3.0
_SLICE_S = 0.02
_CURVE_OVERHEAD = 64
_HANDSHAKE_BYTES = 4096
_MAX_FRAMES = 4
# Plain integers: combining the enum costs 2 us each time.
_RECV = int(zmq.NOBLOCK)
_RECV_SLICE = 0
_SEND_LAST = int(zmq.NOBLOCK)
_SEND_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)


class ZmqEndpoint:
    """What hub and spoke share. The lock makes `close` safe during a wait; the wake-up ends the wait."""

    def __init__(
        self,
        kind: int,
        name: str,
        keys: CurveKeys,
        plane: Plane,
        context: ZmqContext | None,
        io_threads: int,
    ) -> None:
        if not (is_key(keys.public) and is_key(keys.secret)):
            raise UserError(f"the CURVE keys of {name} are not Z85 text of 40 characters")
        self.name = name
        self.counters = Counters()
        self.bytes_sent = 0
        self.bytes_received = 0
        self._plane = plane
        self._posted: deque[tuple[list[bytes | memoryview], str | None]] = deque()
        self._held: deque[Envelope | PeerError] = deque()
        self._closed = False
        self._lock = threading.Lock()
        self._wakeup = Wakeup()
        self._context = context or ZmqContext(io_threads)
        self._owns_context = context is None
        self._socket = _configured(self._context.socket(kind), keys, plane)
        # The method of the base class: that of zmq.Socket only adds options which are not used here.
        self._send_frame = super(zmq.Socket, self._socket).send
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wakeup, zmq.POLLIN)

    def send(
        self,
        message: Message,
        tensors: Sequence[Buffer] = (),
        to: str | Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        frames = frames_of(message, tensors, self._plane)
        count = sum(map(len, frames))
        with self._lock:
            if self._closed or self._posted:
                self._flush()
            for name in names_of(to):
                if not self._try_send(frames, name):
                    self._deliver(frames, name, _SEND_TIMEOUT_S if timeout_s is None else timeout_s)
                self.bytes_sent += count

    def recv(self, timeout_s: float) -> Envelope | None:
        deadline = time.monotonic() + timeout_s
        remaining_s = timeout_s
        with self._lock:
            while True:
                if self._closed or self._posted:
                    self._flush()
                if self._held:
                    return _result(self._held.popleft())
                # Waiting inside the call that reads saves a poll and an exception per message.
                waits = remaining_s >= _SLICE_S and not self._plane.prompt
                item = self._take(_RECV_SLICE if waits else _RECV)
                if item is not None:
                    return _result(item)
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return None
                if not waits:
                    self._silence(self._poller.poll(int(remaining_s * 1000) + 1))

    def post(self, message: Message, to: str | None = None) -> None:
        # Encoded here, so that the caller and not the owner learns of a message that cannot be sent.
        self._posted.append((frames_of(message, (), self._plane), to))
        self._wakeup.ring()

    def close(self) -> None:
        self._closed = True
        self._wakeup.ring()
        with self._lock:
            if self._socket.closed:
                return
            self._drain()
            self._socket.close(linger=_LINGER_MS)
            self._wakeup.close()
            if self._owns_context:
                self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, frames: list[zmq.Frame]) -> Envelope | PeerError | None:
        """What the frames of one message mean; None where nobody needs to know."""
        raise NotImplementedError

    def _try_send(self, frames: Sequence[bytes | memoryview], to: str | None) -> bool:
        """Hand the frames to libzmq unless that would wait."""
        raise NotImplementedError

    def _wait_to_send(self, timeout_s: float) -> None:
        raise NotImplementedError

    def _flush(self) -> None:
        """Send what other threads posted; EndpointClosed where one of them called `close`."""
        if self._closed:
            raise EndpointClosed(f"the connection of {self.name} was closed")
        if self._posted:
            self._drain()

    def _drain(self) -> None:
        while self._posted:
            frames, to = self._posted.popleft()
            if self._try_send(frames, to):
                self.bytes_sent += len(frames[0])
            else:
                self.counters.undeliverable += 1

    def _deliver(self, frames: list[bytes | memoryview], to: str | None, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._try_send(frames, to):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise Unreachable(to or "the hub", timeout_s)
            self._wait_to_send(min(remaining_s, _SLICE_S))
            if self._closed:
                raise EndpointClosed(f"the connection of {self.name} was closed")

    def _send_frames(self, frames: Sequence[bytes | memoryview]) -> bool:
        """False where nothing was sent because the peer is not there or its queue is full."""
        send = self._send_frame
        try:
            # A copy: sending without one needs pyzmq's own thread, and CURVE costs far more per byte.
            for frame in frames[:-1]:
                send(frame, _SEND_MORE)
            send(frames[-1], _SEND_LAST)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _silence(self, ready: list[tuple[object, int]]) -> None:
        if any(item is not self._socket for item, _ in ready):
            self._wakeup.silence()

    def _take(self, flags: int) -> Envelope | PeerError | None:
        """The next message that the owner needs to know of; None where none is there (`flags`: for 20 ms)."""
        while True:
            try:
                frames = _receive_frames(self._socket, flags)
            except zmq.Again:
                return None
            try:
                item = self._read(frames)
            except MalformedMessage as error:
                self.counters.malformed += 1
                return error
            if item is not None:
                return item

    def _envelope(self, sender: str, frames: list[zmq.Frame]) -> Envelope:
        if len(frames) > _MAX_FRAMES:
            raise MalformedMessage(sender, f"more than {_MAX_FRAMES} frames")
        views = [frame.buffer for frame in frames]
        envelope = read_frames(sender, views, self._plane)
        self.bytes_received += sum(map(len, views))
        return envelope


def _configured(socket: zmq.Socket[bytes], keys: CurveKeys, plane: Plane) -> zmq.Socket[bytes]:
    """Options of both roles; to be set before bind or connect."""
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()
    socket.maxmsgsize = max(plane.frame_limit, _HANDSHAKE_BYTES) + _CURVE_OVERHEAD
    socket.sndhwm = socket.rcvhwm = plane.queue_length
    socket.handshake_ivl = _HANDSHAKE_MS
    socket.heartbeat_ivl = _HEARTBEAT_MS
    socket.heartbeat_timeout = socket.heartbeat_ttl = _HEARTBEAT_TIMEOUT_MS
    socket.reconnect_ivl = _RECONNECT_MS
    socket.reconnect_ivl_max = _RECONNECT_MAX_MS
    socket.linger = _LINGER_MS
    socket.rcvtimeo = int(_SLICE_S * 1000)
    return socket


def _receive_frames(socket: zmq.Socket[bytes], flags: int) -> list[zmq.Frame]:
    """One whole message, cut after `_MAX_FRAMES` + 1 frames; zmq.Again where there is none."""
    receive = socket.recv
    frame = receive(flags, False)
    frames = [frame]
    while frame.more:
        frame = receive(_RECV, False)
        if len(frames) <= _MAX_FRAMES:
            frames.append(frame)
    return frames


def _result(item: Envelope | PeerError) -> Envelope:
    if isinstance(item, PeerError):
        raise item
    return item
