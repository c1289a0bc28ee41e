"""Bytes that came over a hub's connections and were not received: too many of them end the connection.

libzmq bounds what waits by counting messages, and then reads the connection no more. That bounds no bytes: a message of
many frames counts when it is whole, and a peer may never end its own. Nor is it a way to stop: where such a connection
fails and what had been read of it has a heartbeat of the peer, libzmq 4.3.5 aborts the process as soon as messages are
received again. So a hub's libzmq reads without a bound. The kernel knows how many bytes have come, the hub's owner how
many it has received; this compares them.
"""

import contextlib
import logging
import os
import socket
import struct
import sys
import threading
import time
from typing import Final, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from tpiedge.transport.cutting import Cutter, TcpConnection, connection_of

__all__ = ["SUPPORTED", "Arrived", "Backlog", "Flow", "curve_bytes"]

SUPPORTED: Final = sys.platform == "linux"
"""Whether the kernel tells. Elsewhere nothing is watched."""

MAX_SEGMENTS: Final = 32768
"""TCP segments of one peer that may come while nothing of it is received: each can hold a buffer of 8 KiB in place."""

_PERIOD_S: Final = 0.1
_IDLE_S: Final = 1.0
# Of the time, whatever a crowd of connections costs.
_SHARE: Final = 20
# A frame's length, and what CURVE adds to it: a command's name, a nonce, a checksum and flags.
_SHORT: Final = 2 + 33
_LONG: Final = 9 + 33
_SHORT_BYTES: Final = 255 - 33
# tcpi_bytes_received and tcpi_data_segs_in of <linux/tcp.h>, since Linux 4.6.
_INFO: Final = struct.Struct("=128xQ16xI")

_log = logging.getLogger(__name__)


def curve_bytes(frame_bytes: int) -> int:
    """What a frame takes of a connection, CURVE included."""
    return frame_bytes + (_SHORT if frame_bytes <= _SHORT_BYTES else _LONG)


class Arrived(NamedTuple):
    """What the kernel has received over a connection so far."""

    byte_count: int
    segments: int


class Flow:
    """One connection. The hub's owner adds to `taken` the wire bytes of every message that it receives."""

    __slots__ = ("_idle_since", "_other", "_taken", "flooded", "left", "taken")

    def __init__(self) -> None:
        self.taken = 0
        #: Whether the connection was ended for it.
        self.flooded = False
        #: Bytes that waited when it was last looked at.
        self.left = 0
        self._taken = self._idle_since = 0
        # Bytes that were received and are none of this connection's: of the one before it, whose name it has.
        self._other = 0

    def waiting(self, arrived: Arrived, taken: int) -> Arrived:
        """The bytes that have come and were not received, and the segments that have come since anything was received.

        `taken`: as it was before the kernel was asked what has arrived. What is received in between came in between.
        """
        if taken != self._taken:
            self._taken, self._idle_since = taken, arrived.segments
        self._other = max(self._other, taken - arrived.byte_count)
        self.left = arrived.byte_count - taken + self._other
        return Arrived(self.left, arrived.segments - self._idle_since)


class Backlog:
    """Watches the connections of one ROUTER, in a thread, from its construction (before the bind) to `close`.

    What came over connections that ended still waits. While that is too much, no new connection gets in:
    neither of a peer that floods and connects again, nor of others, which would not be heard either before the owner
    has received what waits.
    """

    def __init__(self, router: zmq.Socket[bytes], limit: int) -> None:
        self._router = router
        self._limit = limit
        self._flows: dict[TcpConnection, Flow] = {}
        self._cutter = Cutter()
        self._due = 0.0
        self._ended_bytes = 0
        #: The owner sets this when it finds nothing that waits.
        self.empty = False
        self._closing = not SUPPORTED
        if SUPPORTED:
            self._events = router.get_monitor_socket(int(zmq.EVENT_ACCEPTED) | int(zmq.EVENT_MONITOR_STOPPED))
            self._thread = threading.Thread(target=self._watch, name="tpiedge-backlog", daemon=True)
            self._thread.start()

    def flow(self, connection: TcpConnection | None) -> Flow:
        """The flow of a connection over which the owner has received a message."""
        if connection is None or not SUPPORTED:  # it would never be forgotten
            return Flow()
        return self._flows.setdefault(connection, Flow())

    def close(self) -> None:
        """Before the ROUTER is closed. Idempotent."""
        if not self._closing:
            self._closing = True
            self._router.disable_monitor()
            self._thread.join()

    def _watch(self) -> None:
        with contextlib.closing(self._events), contextlib.suppress(zmq.ContextTerminated):
            while not self._closing:
                if self._events.poll(self._patience_ms()):
                    self._meet()
                if time.monotonic() >= self._due:
                    self._look()

    def _patience_ms(self) -> int:
        return int(max(0.0, self._due - time.monotonic()) * 1000) + 1

    def _meet(self) -> None:
        """Take in a new connection, which may have said nothing yet."""
        self._due = min(self._due, time.monotonic() + _PERIOD_S)
        event = recv_monitor_message(self._events)
        connection = connection_of(event["value"]) if event["event"] == zmq.EVENT_ACCEPTED else None
        if connection is not None:
            self._flows.setdefault(connection, Flow())
            if self._ended_bytes > self._limit:
                self._cutter.cut(connection)

    def _look(self) -> None:
        began = time.monotonic()
        if self.empty:
            self.empty, self._ended_bytes = False, 0
        for connection, flow in list(self._flows.items()):
            taken, arrived = flow.taken, _arrived(connection)
            if arrived is None:
                self._ended_bytes += self._flows.pop(connection).left
            elif not flow.flooded:
                self._judge(connection, flow, flow.waiting(arrived, taken))
        now = time.monotonic()
        self._due = now + (
            max(_PERIOD_S, _SHARE * (now - began)) if self._flows or self._ended_bytes else _IDLE_S
        )

    def _judge(self, connection: TcpConnection, flow: Flow, waiting: Arrived) -> None:
        if waiting.byte_count > self._limit or waiting.segments > MAX_SEGMENTS:
            flow.flooded = True
            self._cutter.cut(connection)
            _log.warning(
                "cut a connection off: %d bytes wait that were not received, and %d may",
                waiting.byte_count,
                self._limit,
            )


def _arrived(connection: TcpConnection) -> Arrived | None:
    """None where the connection is gone."""
    with contextlib.suppress(OSError):
        if os.fstat(connection.descriptor).st_ino == connection.inode:
            # Borrowed from libzmq, which may close it at any time.
            borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, connection.descriptor)
            try:
                return Arrived(
                    *_INFO.unpack(borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
                )
            finally:
                borrowed.detach()
    return None
