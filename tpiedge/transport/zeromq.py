"""Implements hub and spokes over ZeroMQ: ROUTER and DEALER, always with CURVE.

A key identifies a peer; `admission` gives the key a name. The routing id of a connection's first frame must be
`name/nonce/ticket`, with the key's name. Only this hub learns the nonce, so no other process can take over the route.
While a process with a key is connected, a second process with the key is refused. A spoke begins every connection with
an empty frame, so the hub notices a new connection.
"""

import contextlib
import errno
import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import zmq

from tpiedge.errors import UserError
from tpiedge.transport.admission import Admission, UnknownPeerPolicy, ZmqContext
from tpiedge.transport.backlog import SUPPORTED, Backlog, Flow, curve_bytes
from tpiedge.transport.cutting import FAREWELL_S, TcpConnection, connection_of, cut
from tpiedge.transport.endpoint import Buffer, DuplicateName, LinkReset, MalformedMessage, Plane, frame_of
from tpiedge.transport.keys import CurveKeys, is_key
from tpiedge.transport.monitor import LinkMonitor
from tpiedge.transport.zeromq_endpoint import DUPLICATE, NOBLOCK, PROBE, SEND_MORE, Frame, Item, ZmqEndpoint
from tpiedge.wire.fields import Message

# Connections that wait to be accepted; a peer beyond them tries again only after a second.
_MOST_CALLS = 1024
_LOOK_S = 0.2
_OWN_ADDRESS = "give one address of this computer, HOST:PORT"
_ADVICE = {
    zmq.EADDRINUSE: "another program has this port: stop it, or give another port",
    errno.EACCES: "give a port above 1023",
}


@dataclass(frozen=True, slots=True)
class _Peer:
    """The peer behind a route. `connection` is None if already gone at the introduction."""

    name: str
    address: str
    connection: TcpConnection | None
    flow: Flow


class ZmqHub(ZmqEndpoint):
    """Binds `address` (tcp://HOST:PORT; PORT may be *). `allowed` maps keys to names."""

    def __init__(
        self,
        address: str,
        keys: CurveKeys,
        name: str,
        allowed: Mapping[str, str],
        *,
        plane: Plane,
        io_threads: int = 1,
        context: ZmqContext | None = None,
        unknown: UnknownPeerPolicy | None = None,
    ) -> None:
        if not address.startswith("tcp://") or address.startswith("tcp://*"):
            raise UserError(f"cannot listen on {address}: {_OWN_ADDRESS}")
        self.admission = Admission(allowed, unknown)
        super().__init__(zmq.ROUTER, name, keys, plane, context, io_threads)
        self.counters = self.admission.counters
        self.changes = self.admission.changes
        self._routes: dict[str, bytes] = {}
        self._known: dict[bytes, _Peer] = {}
        #: Connections to cut once their last message has left, each with the time to cut.
        self._leaving: deque[tuple[float, TcpConnection]] = deque()
        #: Routes whose connection was ended, and may be made anew.
        self._cut: dict[bytes, TcpConnection | None] = {}
        self.socket.curve_server = 1
        self.socket.zap_domain = self._context.guard(self.admission)
        self.socket.router_mandatory = 1
        self.socket.router_handover = 1
        self.socket.backlog = _MOST_CALLS
        if SUPPORTED:
            self.socket.rcvhwm = 0
        self._backlog = Backlog(self.socket, plane.backlog_limit, self.admission)
        self.socket.ipv6 = address.startswith("tcp://[")
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            # Not the error's own text, which repeats the address.
            number = error.errno or 0
            raise UserError(
                f"cannot listen on {address.removeprefix('tcp://')}: {zmq.strerror(number)}; "
                f"{_ADVICE.get(number, _OWN_ADDRESS)}"
            ) from None
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._port = int(self.address.rpartition(":")[2])

    def route_to(self, name: str) -> tuple[bytes, Flow] | None:
        route = self._routes.get(name, b"")
        peer = self._known.get(route)
        return None if peer is None or name not in self.admission.admitted else (route, peer.flow)

    def address_of(self, name: str) -> str:
        """Returns a connected peer's IP address, else "". Thread-safe."""
        peer = self._known.get(self._routes.get(name, b""))
        return "" if peer is None else peer.address

    def is_connected(self, name: str) -> bool:
        """Whether the kernel has the peer's connection. The kernel notices lost packets only after seconds."""
        with self.lock:
            route = self._routes.get(name)
            return route is not None and not self._closed and self._is_alive(route)

    def disconnect(self, name: str, farewell: Message | None = None) -> None:
        """Ends a removed peer's connection at once. With a `farewell`, sends it, and ends the connection in a later
        `recv`."""
        with self.lock:
            route = self._routes.pop(name, None)
            if route is None or self._closed:
                return
            peer = self._known.pop(route)
            # A descriptor that was reused before the peer's first frame was read is another connection's.
            self._end(route, peer.connection if peer.flow.route == route else None, farewell)

    def close(self) -> None:
        self._backlog.close()
        super().close()

    def _end(self, route: bytes, connection: TcpConnection | None, farewell: Message | bytes | None) -> None:
        if farewell is not None:
            frame = farewell if isinstance(farewell, bytes) else frame_of(farewell, None, self._plane)
            self._send_to_route(route, frame)
        self._cut[route] = connection
        while len(self._cut) > 1000:
            del self._cut[next(iter(self._cut))]
        if connection is not None and farewell is None:
            cut(connection)
        elif connection is not None:
            self._leaving.append((time.monotonic() + FAREWELL_S, connection))

    def _try_send(self, frame: Buffer, to: str | None) -> bool:
        route = self._routes.get(to or "")
        return route is not None and to in self.admission.admitted and self._send_to_route(route, frame)

    def _send_to_route(self, route: bytes, frame: Buffer) -> bool:
        try:
            # A copy: sending without one needs pyzmq's own thread, and CURVE costs far more per byte.
            self._send_part(route, SEND_MORE)
            self._send_part(frame, NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True

    def _wait_to_send(self, timeout_s: float) -> None:
        """Waits and receives meanwhile, because the peer may have to introduce itself."""
        held_bytes = sum(len(item[1]) for item in self._held if isinstance(item, tuple))
        if len(self._held) >= 256 or held_bytes >= self._plane.backlog_limit:
            time.sleep(timeout_s)
            return
        self._silence(self._poller.poll(int(timeout_s * 1000) + 1))
        item = self._receive_next(NOBLOCK)
        if item is not None:
            self._held.append(item)

    def _receive(self, flags: int) -> Item | None:
        while self._leaving and self._leaving[0][0] <= time.monotonic():
            cut(self._leaving.popleft()[1])
        return self._sort(self._recv_part(flags), self._recv_part(NOBLOCK, False))

    def _idle(self) -> None:
        self._backlog.empty = True

    def _sort(self, route: bytes, frame: Frame) -> Item | None:
        # Every connection begins with a probe, and so passes `_introduce`; from then on its route is its name.
        peer = self._known.get(route)
        if peer is None or not len(frame):
            return self._introduce(route, frame)
        peer.flow.taken += curve_bytes(len(frame))
        if peer.name not in self.admission.admitted:
            self.counters.refused += 1
            self._skip_rest(frame)
            return None
        return self._received(peer.name, frame)

    def _introduce(self, route: bytes, frame: Frame) -> Item | None:
        """Reads a connection's first frame. Decides whether `route` leads to its sender."""
        # The name that `admission` gave the connection.
        user: str = frame.get("User-Id")  # type: ignore[assignment]
        address: str = frame.get("Peer-Address")  # type: ignore[assignment]
        self._skip_rest(frame)
        connection = connection_of(frame.get("__fd"), self._port, address)
        owner = self._backlog.flow(connection).route
        if owner not in (b"", route) and self._is_alive(owner):
            connection = None  # it is gone, and its descriptor is another peer's
        if route in self._cut:
            if connection is None or connection == self._cut[route]:
                self.counters.refused += 1
                return None
            del self._cut[route]
        if not route.startswith(user.encode() + b"/"):
            self.counters.refused += 1
            self._end(route, connection, None)
            return None
        if user not in self.admission.admitted:
            ticket = route.rpartition(b"/")[2].decode("ascii", "replace")
            farewell = self.admission.refusal(user, ticket, connection)
            if user not in self.admission.admitted:
                self.counters.refused += 1
                self._end(route, connection, farewell)
                return None
        known = self._routes.get(user)
        # Two connections that are gone may have been one: a member gets the benefit of the doubt.
        unclear = connection is None and not self.admission.may_be_unknown(user)
        if known == route and connection == self._known[route].connection and not unclear:
            self.counters.refused += 1
            return MalformedMessage(user, "an empty frame")
        if known is not None and known != route and self._is_alive(known):
            self.counters.refused += 1
            self._end(route, connection, DUPLICATE)
            return None
        before = None if known is None else self._known.pop(known)
        if before is not None and before.connection is not None and before.flow.route == known:
            cut(before.connection)  # libzmq keeps a connection whose route it handed over
        flow = self._backlog.flow(connection)
        flow.route, flow.name = route, user
        self.admission.introduced(user, connection)
        self._routes[user] = route
        self._known[route] = _Peer(user, address, connection, flow)
        if before is None:
            return None
        flood = f"it had sent more than {self._plane.backlog_limit} bytes ahead"
        return LinkReset(user, flood if before.flow.flooded else "")

    def _is_alive(self, route: bytes) -> bool:
        """Whether `route` is connected. Sends a frame that spokes ignore."""
        try:
            self.socket.send_multipart([route, PROBE], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            return error.errno == zmq.EAGAIN
        return True


class ZmqSpoke(ZmqEndpoint):
    """Connects to the hub at `address`, and again after breaks. `ticket` proves that a peer with an unknown key has
    a token."""

    _keeps_posts = True

    def __init__(
        self,
        address: str,
        server_key: str,
        keys: CurveKeys,
        name: str,
        *,
        hub_name: str,
        plane: Plane,
        context: ZmqContext | None = None,
        ticket: str = "",
    ) -> None:
        if not is_key(server_key):
            raise UserError(f"not the public key of {hub_name}: {len(server_key)} characters")
        super().__init__(zmq.DEALER, name, keys, plane, context)
        self.address = address
        self._hub_name = hub_name
        self._flow = Flow()  # counted, but never looked at
        self._writable = zmq.Poller()
        self._writable.register(self.socket, zmq.POLLOUT)
        self._writable.register(self._wakeup, zmq.POLLIN)
        self.socket.curve_serverkey = server_key.encode()
        self.socket.routing_id = f"{name}/{secrets.token_hex(8)}/{ticket}".encode()
        self.socket.probe_router = 1
        # Nothing queues for a connection that does not exist yet.
        self.socket.immediate = 1
        self.monitor = LinkMonitor(self.socket)
        self._look_at = 0.0
        self.socket.ipv6 = address.startswith("tcp://[")
        try:
            self.socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise UserError(f"cannot connect to {address}: {error}") from None

    def close(self) -> None:
        self.monitor.close()
        super().close()

    def route_to(self, name: str) -> tuple[bytes, Flow] | None:
        return (b"", self._flow) if name == self._hub_name else None

    def _idle(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        # After bytes that libzmq cannot decrypt, it does not mend the link.
        if self.monitor.gave_up():
            with contextlib.suppress(zmq.ZMQError):  # it may no longer know the address
                self.socket.disconnect(self.address)
            self.socket.connect(self.address)

    def _try_send(self, frame: Buffer, to: str | None) -> bool:
        if to not in (None, self._hub_name):
            return False
        try:
            self._send_part(frame, NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _wait_to_send(self, timeout_s: float) -> None:
        self._idle()
        self._silence(self._writable.poll(int(timeout_s * 1000) + 1))

    def _receive(self, flags: int) -> Item | None:
        return self._sort(b"", self._recv_part(flags, False))

    def _sort(self, _route: bytes, frame: Frame) -> Item | None:
        if len(frame) <= len(DUPLICATE) and not frame.more:
            if frame.buffer == DUPLICATE:
                return DuplicateName(self._hub_name, self.name)
            if frame.buffer == PROBE:
                return None
        return self._received(self._hub_name, frame)
