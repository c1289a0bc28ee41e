"""A ZeroMQ context with its gatekeeper, how the sockets are set up, and how long its operations may take."""

import itertools

import zmq

from tpiedge.transport.admission import Admission, Gatekeeper
from tpiedge.transport.framing import Plane
from tpiedge.transport.keys import CurveKeys


class ZmqContext:
    """Close the endpoints first: `close` waits for them, and ends every thread.

    With `io_threads` > 1 the encryption of different connections runs in parallel.
    """

    def __init__(self, io_threads: int = 1) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads)
        self._gatekeeper: Gatekeeper | None = None
        self._numbers = itertools.count()

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        return self._context.socket(kind)

    def guard(self, admission: Admission) -> bytes:
        """A new ZAP domain whose connections `admission` judges. Set it on a socket before it is bound."""
        if self._gatekeeper is None:
            self._gatekeeper = Gatekeeper(self._context)
        domain = f"hub-{next(self._numbers)}".encode()
        self._gatekeeper.guard(domain, admission)
        return domain

    def close(self) -> None:
        self._context.term()
        if self._gatekeeper is not None:
            self._gatekeeper.join()


SLICE_S = 0.02
"""How long a read inside libzmq waits."""

LINGER_MS = 200
"""How long what was sent last has to leave once a socket is closed."""

_HANDSHAKE_MS = 3000
_HANG_UP_MS = 6000
_RECONNECT_MS = 100
_RECONNECT_MAX_MS = 5000
_CURVE_OVERHEAD = 64
_HANDSHAKE_BYTES = 4096


def configure(socket: zmq.Socket[bytes], keys: CurveKeys, plane: Plane) -> None:
    """Options of both roles; to be set before bind or connect."""
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()
    _limit(socket, plane)
    _watch_by_kernel(socket)
    socket.handshake_ivl = _HANDSHAKE_MS
    # The kernel alone would wait for minutes in the end: a link is to be found mended soon.
    socket.connect_timeout = _HANDSHAKE_MS
    socket.reconnect_ivl = _RECONNECT_MS
    socket.reconnect_ivl_max = _RECONNECT_MAX_MS
    socket.rcvtimeo = int(SLICE_S * 1000)
    socket.linger = LINGER_MS


def _limit(socket: zmq.Socket[bytes], plane: Plane) -> None:
    """A frame beyond `maxmsgsize` ends the connection, and libzmq tells neither side why:
    its monitor has the same event, without a reason, for whatever ends a connection. So it looks like a broken link.
    An honest sender refuses such a frame itself.
    """
    socket.maxmsgsize = max(plane.frame_limit, _HANDSHAKE_BYTES) + _CURVE_OVERHEAD
    socket.sndhwm = plane.queue_length
    socket.rcvhwm = plane.receive_length


def _watch_by_kernel(socket: zmq.Socket[bytes]) -> None:
    """The kernel finds the connections whose other end is silently gone, within 6 s: five probes must be lost, as links
    that lose packets lose two in a row too often. Who cannot wait for that sends messages of its own.

    libzmq's heartbeats stay off: 4.3.5 aborts the process where one is due on a connection that failed while it was
    not read, because as many messages as may wait did so.
    """
    socket.heartbeat_ivl = 0
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = 1
    socket.tcp_keepalive_cnt = 5
    socket.tcp_maxrt = _HANG_UP_MS
