"""One connection: uvicorn's, with a deadline for receiving a request's head, with bounds on what one turn of the event
loop reads, and with errors in our shape."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from tpiedge.api.bounded_http import BoundedHttp
from tpiedge.api.errors import ApiError
from tpiedge.units import KIB

__all__ = ["PIECE_BYTES", "below_tls", "connection_class"]

PIECE_BYTES: Final = 8 * KIB
"""No more of what a client sent is parsed in one turn of the event loop; others have theirs before the next."""

#: As TCP's: what a client does not read is kept in the server's memory.
_TLS_UNSENT_BYTES: Final = 64 << 10


def connection_class(headers_s: float, headers_bytes: int) -> type[H11Protocol]:
    """A protocol that closes a connection on which a request's head takes more than `headers_s` to arrive, or has more
    than `headers_bytes`."""

    class HttpConnection(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.conn: BoundedHttp = BoundedHttp(headers_bytes)
            #: Not parsed yet. Nothing more is read from the connection meanwhile.
            self._received = bytearray()
            self._turn: asyncio.Handle | None = None
            self._timer: asyncio.TimerHandle | None = None
            self._lost = False
            #: Whether bytes of an answer were dropped, or never written.
            self._cut = False
            self._below: asyncio.WriteTransport | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.flow = _Flow(transport, self._resume)
            self._below = below_tls(transport)
            if self._below is not None:
                transport.set_write_buffer_limits(_TLS_UNSENT_BYTES)
            self.app_state = {"drop": self._abort, "unsent": self._unsent, "arriving": self._arriving}
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            self._received.clear()
            self._cut_unfinished()
            self._lost, self._cut = True, self._cut or exc is not None
            super().connection_lost(exc)

        def eof_received(self) -> None:
            """The transport closes now, and drops what is written from now on."""
            self._cut_unfinished()
            super().eof_received()

        def data_received(self, data: bytes) -> None:
            self._received += data
            if self._turn is None:
                self._parse()

        def _parse(self) -> None:
            """One piece, unless uvicorn wants no more for now."""
            self._turn = None
            if self.transport.is_closing():
                self._received.clear()
            if self._received and not self.flow.read_paused:
                piece = bytes(self._received[:PIECE_BYTES])
                del self._received[:PIECE_BYTES]
                super().data_received(piece)
                if self.cycle is not None and not self.cycle.response_complete:
                    self._stop_timer()
                else:
                    self._expect_head()
            if self._received:
                self.transport.pause_reading()
                if not self.flow.read_paused:
                    self._resume()
            else:
                self.transport.resume_reading()

        def _resume(self) -> None:
            if self._turn is None:
                self._turn = self.loop.call_soon(self._parse)

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

        def _arriving(self) -> bool:
            return self.conn.arriving

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

        def _expect_head(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(headers_s, self._abort)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return HttpConnection


class _Flow(FlowControl):
    """Whether uvicorn wants more. `resumed` is called when it does so again."""

    def __init__(self, transport: asyncio.Transport, resumed: Callable[[], None]) -> None:
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
