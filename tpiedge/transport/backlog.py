"""Cuts connections that flood a hub, and connections that stay unauthenticated.

libzmq's high-water mark counts messages, not bytes. If libzmq 4.3.5 stops reading a connection, it may abort the
process. So libzmq reads without a limit here. This module compares the kernel's count of received bytes with the hub's
count.

Unauthenticated connections are limited in time and number. If there are too many, the address with the most connections
loses its oldest connection.
"""

import contextlib
import logging
import math
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from tpiedge.transport.admission import Admission
from tpiedge.transport.cutting import FAREWELL_S, TcpConnection, borrowed, connection_of, cut
from tpiedge.units import KIB

SUPPORTED: Final = sys.platform == "linux"
"""Whether the kernel counts received bytes; elsewhere nothing is watched."""

MAX_SEGMENTS: Final = 32768
"""TCP segments of one peer that may arrive unread: each can occupy a buffer of 8 KiB."""

MAX_UNAUTHENTICATED: Final = 128
UNAUTHENTICATED_PER_ADDRESS: Final = 64
"""A hub's limit per peer address: computers behind one address may start together."""

# A handshake has 3 s.
_UNAUTHENTICATED_S: Final = 5.0
# Longer than the owner keeps a connection open for its farewell.
_FAREWELL_S: Final = 2 * FAREWELL_S
# A peer with an unknown key sends only an Enrol or a PairingRequest.
_UNKNOWN_PEER_BYTES: Final = 64 * KIB
_MOST_AT_ONCE: Final = 256
_PERIOD_S: Final = 0.1
_IDLE_S: Final = 1.0
# The pause after a look is at least this many times as long.
_SHARE: Final = 20
# What CURVE adds to a frame: a command's name, a nonce, a checksum and flags.
_CURVE_BYTES: Final = 33
# tcpi_bytes_received and tcpi_data_segs_in of <linux/tcp.h>, since Linux 4.6.
_INFO: Final = struct.Struct("=128xQ16xI")

_log = logging.getLogger(__name__)


def overfull_address(addresses: Sequence[str]) -> str | None:
    """Returns the address with too many connections, else None. The last of `addresses` is the newest connection's."""
    counts = Counter(addresses)
    if counts[addresses[-1]] > UNAUTHENTICATED_PER_ADDRESS:
        return addresses[-1]
    return counts.most_common(1)[0][0] if len(addresses) > MAX_UNAUTHENTICATED else None


def curve_bytes(frame_bytes: int) -> int:
    """Returns a frame's size on the connection, with CURVE."""
    encrypted = frame_bytes + _CURVE_BYTES
    return encrypted + (2 if encrypted <= 255 else 9)


@dataclass(slots=True, eq=False)
class Flow:
    """The bytes of one connection."""

    route: bytes = b""
    name: str = ""
    taken: int = 0  # wire bytes that the hub received
    cut: bool = False
    flooded: bool = False  # cut for too many bytes
    left: int = 0  # bytes that waited at the last check
    since: float = 0.0  # when it became unauthenticated
    until: float = math.inf  # when it is cut unless authenticated
    _taken: int = 0
    _idle_since: int = 0
    # Received bytes of the previous connection with the same descriptor and inode.
    _other: int = 0

    def waiting(self, taken: int, arrived: int, segments: int) -> tuple[int, int]:
        """Returns the number of waiting bytes, and the number of TCP segments since the hub last took bytes. The
        caller must read the hub's count `taken` before the kernel's counts `arrived` and `segments`."""
        if taken != self._taken:
            self._taken, self._idle_since = taken, segments
        self._other = max(self._other, taken - arrived)
        self.left = arrived - taken + self._other
        return self.left, segments - self._idle_since


class Backlog:
    """Watches one ROUTER in a thread until `close`. Make the Backlog before the bind.

    `limit` bounds the waiting bytes of each admitted peer. It also bounds the unread bytes of ended connections: beyond
    it, new connections are cut.
    """

    def __init__(self, router: zmq.Socket[bytes], limit: int, admission: Admission) -> None:
        self._router = router
        self._limit = limit
        self._admission = admission
        self._flows: dict[TcpConnection, Flow] = {}
        self._due = self._looked = self._received_until = 0.0
        self._ended_bytes = 0
        # The ROUTER's port, once it is bound.
        self._port = 0
        #: The owner sets this when no message waits.
        self.empty = False
        self._stopped = self._closing = not SUPPORTED
        if SUPPORTED:
            place = f"inproc://backlog-{id(router)}"
            router.monitor(place, int(zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_MONITOR_STOPPED))
            # Unbounded and always read: else libzmq blocks, in `disable_monitor` with the interpreter's lock.
            self._events: zmq.Socket[bytes] = router.context.socket(zmq.PAIR)
            self._events.rcvhwm = 0
            self._events.connect(place)
            self._thread = threading.Thread(target=self._watch, name="tpiedge-backlog", daemon=True)
            self._thread.start()

    def flow(self, connection: TcpConnection | None) -> Flow:
        """Returns the connection's Flow. Makes it at the first call."""
        if connection is None or not SUPPORTED:  # a stored flow would never be removed
            return Flow()
        return self._flows.setdefault(connection, Flow())

    def close(self) -> None:
        """Stops watching. Call it before the ROUTER is closed. Idempotent."""
        if not self._closing:
            self._closing = True
            self._router.disable_monitor()
            self._thread.join()

    def _watch(self) -> None:
        with contextlib.closing(self._events), contextlib.suppress(zmq.ContextTerminated):
            while not self._stopped:
                if self._events.poll(int(max(0.0, self._due - time.monotonic()) * 1000) + 1):
                    self._read_events()
                if time.monotonic() >= self._due:
                    self._look()

    def _read_events(self) -> None:
        self._due = min(self._due, time.monotonic() + _PERIOD_S)
        with contextlib.suppress(zmq.Again):
            for _ in range(_MOST_AT_ONCE):
                event = recv_monitor_message(self._events, zmq.NOBLOCK)
                match event["event"]:
                    case zmq.EVENT_LISTENING:  # before any connection is accepted
                        self._port = int(event["endpoint"].rpartition(b":")[2])
                    case zmq.EVENT_ACCEPTED:
                        connection = connection_of(event["value"], self._port)
                        if connection is None:
                            continue
                        flow = self.flow(connection)
                        if self._ended_bytes > self._limit:
                            self._cut(connection, flow)
                        elif not flow.name:  # its peer may not have sent anything yet
                            self._limit_time(connection, flow, _UNAUTHENTICATED_S)
                    case _:
                        self._stopped = True

    def _look(self) -> None:
        began = time.monotonic()
        if self.empty:
            self.empty, self._ended_bytes = False, 0
            self._received_until = self._looked  # at least; perhaps until later
        self._looked = began
        for connection, flow in list(self._flows.items()):
            taken, info = flow.taken, b""
            with contextlib.suppress(OSError), borrowed(connection) as lent:
                info = lent.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
            if not info:  # the connection is gone
                self._ended_bytes += self._flows.pop(connection).left
            elif flow.cut:
                cut(connection)  # again: the first cut may have found no free descriptor
            else:
                self._check(connection, flow, *flow.waiting(taken, *_INFO.unpack(info)))
                if flow.until <= self._received_until:
                    self._cut_unauthenticated(connection, flow)
        now = time.monotonic()
        pause_s = max(_PERIOD_S, _SHARE * (now - began))
        self._due = now + (pause_s if self._flows or self._ended_bytes else _IDLE_S)

    def _check(self, connection: TcpConnection, flow: Flow, waiting: int, segments: int) -> None:
        if flow.name in self._admission.admitted:
            flow.until = math.inf
        elif flow.name and flow.until == math.inf:
            self._limit_time(connection, flow, _FAREWELL_S)
        is_unknown = self._admission.may_be_unknown(flow.name)
        limit = min(self._limit, _UNKNOWN_PEER_BYTES) if is_unknown else self._limit
        if waiting > limit or segments > MAX_SEGMENTS:
            flow.flooded = True
            self._cut(connection, flow)
            words = "cut a connection off: %d bytes wait that were not received, and %d may"
            _log.log(logging.INFO if is_unknown else logging.WARNING, words, waiting, limit)

    def _limit_time(self, connection: TcpConnection, flow: Flow, stay_s: float) -> None:
        flow.since = time.monotonic()
        flow.until = flow.since + stay_s
        flows = dict(self._flows)
        others = [one for one, other in flows.items() if other.until < math.inf and one != connection]
        full = overfull_address([*(one.address for one in others), connection.address])
        if full is not None:
            oldest = min((one for one in others if one.address == full), key=lambda one: flows[one].since)
            self._cut_unauthenticated(oldest, flows[oldest])

    def _cut_unauthenticated(self, connection: TcpConnection, flow: Flow) -> None:
        flow.until = math.inf
        if flow.name not in self._admission.admitted:  # it may have been introduced just now
            self._cut(connection, flow)

    def _cut(self, connection: TcpConnection, flow: Flow) -> None:
        flow.cut, flow.until = True, math.inf
        cut(connection)
