"""HTTP as h11 reads it, with bounds on what costs it much time: it takes some microseconds for each line of a head and
for each chunk of a body, however short they are. As RFC 9112 asks, empty lines before a request are overlooked, where
old clients end a body with one, and a body has one length: of two, a proxy might believe the other.

Laws:

1. A head, and what follows the last chunk of a body, has at most `MOST_LINES` lines: more are not even looked at.
2. The chunks of a body have at least `SMALLEST_CHUNK` bytes on average, but for the first `FREE_CHUNKS`.
"""

from typing import Final

import h11
from h11._receivebuffer import ReceiveBuffer

MOST_LINES: Final = 128
FREE_CHUNKS: Final = 256
SMALLEST_CHUNK: Final = 64


class BoundedHttp(h11.Connection):
    """A server's side of one connection."""

    def __init__(self, head_bytes: int) -> None:
        """`head_bytes`: of the largest head."""
        super().__init__(h11.SERVER, head_bytes)
        self._receive_buffer: _FewLines = _FewLines()
        #: Why it reads no more, where more came than is allowed.
        self.refusal = ""
        self._chunks = 0
        self._body_bytes = 0

    @property
    def arriving(self) -> bool:
        """Whether the request's body has not ended yet."""
        return self.their_state is h11.SEND_BODY

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """As h11's. Raises RemoteProtocolError, for more than is allowed, too."""
        if self.their_state in (h11.IDLE, h11.MUST_CLOSE):
            self._receive_buffer.skip_empty_lines()
        try:
            event = super().next_event()
            self._count(event)
        except _Refused as error:
            self.refusal = str(error)
            raise
        return event

    def _count(self, event: object) -> None:
        if isinstance(event, h11.Request):
            self._chunks = self._body_bytes = 0
            names = {name for name, _ in event.headers}
            if names >= {b"content-length", b"transfer-encoding"}:
                raise _Refused("a body has either a Content-Length or a Transfer-Encoding")
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_end
            self._body_bytes += len(event.data)
            if self._chunks > FREE_CHUNKS and self._body_bytes < SMALLEST_CHUNK * self._chunks:
                raise _Refused(
                    f"the body comes in chunks of less than {SMALLEST_CHUNK} bytes: send larger ones"
                )


class _Refused(h11.RemoteProtocolError):
    """It is no proper request, or has more lines or chunks than are allowed."""


class _FewLines(ReceiveBuffer):
    """Where h11 takes the lines of a head from, and those after the last chunk of a body."""

    def skip_empty_lines(self) -> None:
        if self._data.startswith((b"\r", b"\n")):
            self._extract(len(self._data) - len(self._data.lstrip(b"\r\n")))

    def maybe_extract_lines(self) -> list[bytearray] | None:
        lines = super().maybe_extract_lines()
        if lines is not None and len(lines) > MOST_LINES:
            raise _Refused(f"a head has more than {MOST_LINES} lines")
        return lines
