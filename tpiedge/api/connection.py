"""Limits the number of connections to the HTTP port, and their cost.

Each client has a quota of connections, because workers also need file descriptors. Clients have deadlines for sending a
request's head and for reading an answer. Parsing is costly, so each iteration of the event loop parses one piece per
client."""

import asyncio
import contextlib
import json
import logging
import socket
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from tpiedge.api.errors import ApiError
from tpiedge.api.limits import HEADERS_BYTES, Limits
from tpiedge.errors import UserError
from tpiedge.host.addresses import Address
from tpiedge.quotas import ClientQuotas
from tpiedge.sanitise import RateLimitedLog
from tpiedge.units import KIB

PIECE_BYTES: Final = 2 * KIB
"""Bytes of one client that an iteration of the event loop parses."""

_log = logging.getLogger(__name__)


class HttpListener(socket.socket):
    """A listening socket for `limit` connections, with a quota per address. Further connections are closed. With
    `plain` (no TLS), they get a 503 first. A single event loop must use the socket, and call accept() until
    BlockingIOError. Raises UserError."""

    def __init__(self, at: Address, limit: int, *, plain: bool) -> None:
        self._plain = plain
        self._places = ClientQuotas(limit)
        self._warnings = RateLimitedLog(_log)
        try:
            found = socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = found[0]
            super().__init__(family, kind, protocol)
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(address)
            self.listen(2048)
        except BaseException as error:
            if self.fileno() >= 0:  # the socket was made
                self.close()
            if not isinstance(error, OSError | UnicodeError | OverflowError):
                raise
            why = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"cannot listen on {at.host}:{at.port}: {why}; give another address or port"
            ) from None

    def accept(self) -> tuple[socket.socket, Any]:
        for _ in range(64):  # the next iteration of the event loop refuses more
            accepted, address = super().accept()
            host = address[0]
            if self._places.acquire(host):
                return _Accepted(accepted, partial(self._places.release, host)), address
            self._warnings.warning("refused an HTTP connection from %s: all places are taken", host)
            _refuse(accepted, self._plain)
        raise BlockingIOError


class _Accepted(socket.socket):
    """A connection that calls `leave` when it is closed or collected."""

    def __init__(self, accepted: socket.socket, leave: Callable[[], None]) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._leave = weakref.finalize(self, leave)

    def close(self) -> None:
        super().close()
        self._leave()


def _refuse(connection: socket.socket, plain: bool) -> None:
    error = ApiError(503, "too many connections are open: try again later", "too_many_connections")
    with connection, contextlib.suppress(OSError):
        connection.setblocking(False)
        if plain:  # with TLS the handshake would take time
            connection.send(_response("503 Service Unavailable\r\nRetry-After: 5", error))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(64 * KIB)  # unread bytes would reset the connection


def _response(status: str, error: ApiError) -> bytes:
    body = json.dumps(error.body())
    head = f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}"
    return f"HTTP/1.1 {status}\r\n{head}\r\n\r\n{body}".encode("ascii")


class RoundRobin:
    """Lets each client act once per iteration of the event loop."""

    def __init__(self) -> None:
        #: What the connections of this event loop read into. asyncio slices it for TLS, and a slice must not be a copy.
        self.piece = memoryview(bytearray(PIECE_BYTES))
        #: Further acts of each client that acted in this iteration.
        self._waiting: dict[str, deque[Callable[[], None]]] = {}

    def call(self, client: str, act: Callable[[], None]) -> None:
        if client in self._waiting:
            self._waiting[client].append(act)
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting[client] = deque()
        act()

    def _next(self) -> None:
        self._waiting = {client: acts for client, acts in self._waiting.items() if acts}
        if self._waiting:
            loop = asyncio.get_running_loop()
            for acts in self._waiting.values():
                loop.call_soon(acts.popleft())
            loop.call_soon(loop.call_soon, self._next)  # after these acts


class HttpConnection(H11Protocol, asyncio.BufferedProtocol):
    """A connection with deadlines for sending heads and reading answers."""

    def __init__(self, limits: Limits, round_robin: RoundRobin, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._round_robin = round_robin
        #: Bytes that are not parsed yet. Reading pauses meanwhile.
        self._received = b""
        self._parse_scheduled = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        #: Bytes that the client had not read at the last look; None unless the server has waited for the client since.
        self._left: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # call_soon, as uvicorn resumes reading before it has ended the cycle.
        self.flow = _Flow(transport, lambda: self.loop.call_soon(self._ask))
        transport.set_write_buffer_limits(64 * KIB)  # bounds memory if the client does not read
        self.app_state = {"arriving": lambda: self.conn.their_state is h11.SEND_BODY}
        self._expect_head()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._left = None
        super().resume_writing()

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._round_robin.piece

    def buffer_updated(self, nbytes: int) -> None:
        self._received += bytes(self._round_robin.piece[:nbytes])
        if self.timeout_keep_alive_task is not None:  # uvicorn's timer for an idle connection
            self.timeout_keep_alive_task.cancel()
        self._ask()
        if self._received:
            self.transport.pause_reading()

    def handle_events(self) -> None:
        """Schedules the parsing of received bytes. uvicorn also calls this method after an answer."""
        self._ask()

    def on_response_complete(self) -> None:
        rest = self.conn.trailing_data[0].lstrip(b"\r\n")  # old clients end a body with a line break
        if self.conn.our_state is self.conn.their_state is h11.DONE:
            self.conn = h11.Connection(h11.SERVER, HEADERS_BYTES)
            if rest:  # h11 reads b"" as the end
                self.conn.receive_data(rest)
        super().on_response_complete()
        self._ask()

    def _ask(self) -> None:
        if not self._parse_scheduled:
            self._parse_scheduled = True
            self._round_robin.call("" if self.client is None else self.client[0], self._parse)

    def _parse(self) -> None:
        self._parse_scheduled = False
        if self.transport.is_closing():
            return
        super().handle_events()
        if self._received and not (self.flow.read_paused or self.transport.is_closing()):
            received, self._received = self._received, b""
            if self.conn.their_state in (h11.IDLE, h11.MUST_CLOSE) and not self.conn.trailing_data[0]:
                received = received.lstrip(b"\r\n")
            if received:
                self.conn.receive_data(received)
            super().handle_events()
            if self.cycle is None or self.cycle.response_complete:
                self._expect_head()
            elif self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        if not self._received:
            self.transport.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Closes the connection after invalid HTTP. Sends status 400 first, unless an answer has begun."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # the application's answer would come too late
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            error = ApiError(400, f"{msg} (or its headers are too large)", "invalid_http")
            self.transport.write(_response("400 Bad Request", error))
        self.transport.close()

    def _look(self) -> None:
        """Aborts the connection if its client has stopped reading."""
        waiting = self.flow.write_paused or self.transport.is_closing()
        left = self.transport.get_write_buffer_size() if waiting else None
        if left and self._left is not None and left >= self._left:
            self.transport.abort()
            return
        self._left = left
        self._look_timer = self.loop.call_later(self._limits.write_s, self._look)

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.headers_s, self.transport.abort)


class _Flow(FlowControl):
    """Remembers whether uvicorn has paused reading; calls `resumed` when uvicorn reads again."""

    def __init__(self, transport: asyncio.Transport, resumed: Callable[[], object]) -> None:
        super().__init__(transport)
        self._resumed = resumed

    def pause_reading(self) -> None:
        self.read_paused = True

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._resumed()
