"""One connection: uvicorn's, with deadlines for sending a request's head and for reading an answer, with bounds on what
is parsed in one turn of the event loop, for each client, and with errors in our shape."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from tpiedge.api.acknowledgement import Acknowledgement
from tpiedge.api.bounded_http import BoundedHttp
from tpiedge.api.errors import ApiError
from tpiedge.api.fairness import FairTurns
from tpiedge.api.limits import Limits
from tpiedge.units import KIB

PIECE_BYTES: Final = 8 * KIB
"""No more of what a client sent, on however many connections, is read and parsed in one turn of the event loop; others
have theirs before the next."""

#: As TCP's: what a client does not read is kept in the server's memory.
_TLS_UNSENT_BYTES: Final = 64 << 10


def connection_class(limits: Limits) -> type[H11Protocol]:
    """A protocol that closes a connection on which a request's head takes too long to arrive, or is too large, or whose
    client does not read what it was sent. For one event loop."""
    # asyncio cuts the buffer, for TLS: of other kinds that would be a copy.
    turns, piece = FairTurns(), memoryview(bytearray(PIECE_BYTES))

    class HttpConnection(H11Protocol, asyncio.BufferedProtocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.conn: BoundedHttp = BoundedHttp(limits.headers_bytes)
            #: Not parsed yet. Nothing more is read from the connection meanwhile.
            self._received = b""
            self._asked = False
            self._timer: asyncio.TimerHandle | None = None
            self._looking: asyncio.TimerHandle | None = None
            #: Bytes that the client had not taken at the last look, if we waited for that then, and still do.
            self._left: int | None = None
            self._lost = False
            #: Whether bytes of an answer were dropped, or never written.
            self._cut = False
            self._below: asyncio.WriteTransport | None = None
            self._host = ""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # Not at once: uvicorn says so before it has ended the cycle.
            self.flow = _Flow(transport, lambda: self.loop.call_soon(self._ask))
            self._below = below_tls(transport)
            if self._below is not None:
                transport.set_write_buffer_limits(_TLS_UNSENT_BYTES)
            self._host = "" if self.client is None else self.client[0]
            self._acknowledgement = Acknowledgement()
            self.app_state = {
                "drop": self._abort,
                "unsent": self._unsent,
                "arriving": lambda: self.conn.arriving,
                "acknowledgement": self._acknowledgement,
            }
            self._expect_head()
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            if self._looking is not None:
                self._looking.cancel()
            self._cut_unfinished()
            self._lost, self._cut = True, self._cut or exc is not None
            super().connection_lost(exc)

        def eof_received(self) -> None:
            """The transport closes now, and drops what is written from now on."""
            self._cut_unfinished()
            super().eof_received()

        def resume_writing(self) -> None:
            self._left = None
            super().resume_writing()

        def get_buffer(self, _sizehint: int) -> memoryview:
            return piece

        def buffer_updated(self, nbytes: int) -> None:
            self._received += bytes(piece[:nbytes])
            if self.timeout_keep_alive_task is not None:  # uvicorn's own, for an idle connection
                self.timeout_keep_alive_task.cancel()
            self._ask()
            if self._received:
                self.transport.pause_reading()

        def handle_events(self) -> None:
            """Of uvicorn, which has answered: the next request may be there."""
            self._ask()

        def on_response_complete(self) -> None:
            received = self.conn.trailing_data[0] + self._received
            self._acknowledgement.ahead = bool(received.strip(b"\r\n"))  # with which old clients end a body
            super().on_response_complete()

        def _ask(self) -> None:
            if not self._asked:
                self._asked = True
                turns.ask(self._host, self._parse)

        def _parse(self) -> None:
            """What is left of the pieces before, and the next one unless uvicorn wants no more for now."""
            self._asked = False
            if self.transport.is_closing():
                return
            super().handle_events()
            if self._received and not (self.flow.read_paused or self.transport.is_closing()):
                received, self._received = self._received, b""
                self.conn.receive_data(received)
                super().handle_events()
                if self.cycle is not None and not self.cycle.response_complete:
                    self._stop_timer()
                else:
                    self._expect_head()
            if not self._received:
                self.transport.resume_reading()

        def send_400_response(self, msg: str) -> None:
            """Bytes that are no HTTP request, or more than is allowed."""
            if self.cycle is not None:
                self.cycle.disconnected = True  # the application's answer comes too late
            why = self.conn.refusal or f"{msg} (or its headers are too large)"
            error = ApiError(400, why, "invalid_http")
            body = json.dumps(error.body()).encode("ascii")
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            events = (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            try:
                output = b"".join(self.conn.send(event) or b"" for event in events)
                self.transport.write(output)
            except h11.LocalProtocolError:
                pass  # an answer is under way: closing is all that can be said
            self._cut_unfinished()
            self.transport.close()

        def _unsent(self) -> int | None:
            """Bytes that the system has not taken yet; None once the connection is lost, and they with it. A connection
            that we closed after the answer has ended only when the system had taken everything."""
            if self._lost:
                return None if self._cut else 0
            below = 0 if self._below is None else self._below.get_write_buffer_size()
            return self.transport.get_write_buffer_size() + below

        def _cut_unfinished(self) -> None:
            """What an answer that has not ended still says reaches nobody."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._cut = True

        def _abort(self) -> None:
            """Closes the connection without what is unsent."""
            self._cut = True
            self.transport.abort()

        def _look(self) -> None:
            """From time to time, whether the client reads what we wait for, or what is left once we closed."""
            waiting = self.flow.write_paused or self.transport.is_closing()
            left = self._unsent() if waiting else None
            if left and self._left is not None and left >= self._left:
                self._abort()
                return
            self._left = left
            self._looking = self.loop.call_later(limits.write_s, self._look)

        def _expect_head(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(limits.headers_s, self._abort)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return HttpConnection


class _Flow(FlowControl):
    """Whether uvicorn wants more. `resumed` is called when it does so again."""

    def __init__(self, transport: asyncio.Transport, resumed: Callable[[], object]) -> None:
        super().__init__(transport)
        self._resumed = resumed

    def pause_reading(self) -> None:
        self.read_paused = True

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._resumed()


def below_tls(transport: asyncio.Transport) -> asyncio.WriteTransport | None:
    """The transport of TCP below one of TLS, of which asyncio tells nobody; None where there is none. It has sent only
    what that one has."""
    found = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    return found if isinstance(found, asyncio.WriteTransport) else None
