"""One connection: uvicorn's, with a deadline for receiving a request's head and with errors in our shape."""

import asyncio
import json
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tpiedge.api.errors import ApiError

__all__ = ["below_tls", "connection_class"]

#: As TCP's: what a client does not read is kept in the server's memory.
_TLS_UNSENT_BYTES: Final = 64 << 10


def connection_class(headers_s: float) -> type[H11Protocol]:
    """A protocol that closes a connection on which a request's head takes more than `headers_s` to arrive."""

    class HttpConnection(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._timer: asyncio.TimerHandle | None = None
            self._lost = False
            #: Whether bytes of an answer were dropped, or never written.
            self._cut = False
            self._below: asyncio.WriteTransport | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._below = below_tls(transport)
            if self._below is not None:
                transport.set_write_buffer_limits(_TLS_UNSENT_BYTES)
            self.app_state = {"drop": self._abort, "unsent": self._unsent}
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            self._cut_unfinished()
            self._lost, self._cut = True, self._cut or exc is not None
            super().connection_lost(exc)

        def eof_received(self) -> None:
            """The transport closes now, and drops what is written from now on."""
            self._cut_unfinished()
            super().eof_received()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_timer()
            else:
                self._expect_head()

        def send_400_response(self, msg: str) -> None:
            """Bytes that are no HTTP request, or a head that is too large."""
            error = ApiError(400, f"{msg} (or its headers are too large)", "invalid_http")
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

        def _expect_head(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(headers_s, self._abort)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return HttpConnection


def below_tls(transport: asyncio.Transport) -> asyncio.WriteTransport | None:
    """The transport of TCP below one of TLS, of which asyncio tells nobody; None where there is none. It has sent only
    what that one has."""
    found = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    return found if isinstance(found, asyncio.WriteTransport) else None
