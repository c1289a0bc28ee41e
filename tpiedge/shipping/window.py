"""Requests ranges of files, several at a time, and yields the bytes in order.

Chunks grow while they arrive quickly. A chunk that takes half a second makes later chunks smaller. Lost requests are
sent again. Silence of 10 s raises PeerError.
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tpiedge.clock import Clock
from tpiedge.errors import Cancelled, PeerError, ProtocolError
from tpiedge.transport.endpoint import DuplicateName, Endpoint, Unreachable
from tpiedge.wire.data import Fetch, FetchFailed, FileChunk, FilePart

LEAST_CHUNK = 1 << 16
"""Chunks never shrink below this number of bytes."""
_NOTHING = memoryview(b"")


@dataclass(slots=True)
class FileBytes:
    """A range of a file of the pack. The answer fills `data` and sets `total` to the file's size."""

    part: FilePart
    layer: int
    blob: str
    offset: int
    length: int
    sent: bool = False
    data: memoryview = _NOTHING
    total: int = 0

    @property
    def label(self) -> str:
        if self.part == "blob":
            return f"bytes {self.offset} to {self.offset + self.length} of layer {self.layer}"
        return "the manifest" if self.part == "manifest" else f"the table of hashes of layer {self.layer}"


class RequestWindow:
    """Asks for bytes of `pack`. Nothing else may use `spoke` during a `stream`. Raises Cancelled once `stopped()` is
    true."""

    def __init__(self, spoke: Endpoint, pack: str, clock: Clock, stopped: Callable[[], bool]) -> None:
        self._spoke = spoke
        self._pack = pack
        self._clock = clock
        self._stopped = stopped
        self._epoch = secrets.randbits(32)
        self._number = 0
        self._chunk = 1 << 18
        self._open: dict[int, FileBytes] = {}
        self._heard_at = self._requested_at = clock.now()
        self._duplicate: DuplicateName | None = None

    def stream(self, spans: Iterator[FileBytes]) -> Iterator[FileBytes]:
        """Yields the bytes of `spans` in order, in chunks. Raises PeerError, Cancelled, EndpointClosed."""
        self._open.clear()  # left by a stream that was given up
        self._heard_at = self._requested_at = self._clock.now()
        span = next(spans, None)
        while True:
            while span is not None and len(self._open) < 8:
                length = min(span.length, self._chunk)
                self._number = (self._number + 1) % (1 << 32)
                self._open[self._number] = replace(span, length=length)
                left = span.length - length
                span = replace(span, offset=span.offset + length, length=left) if left else next(spans, None)
            if not self._open:
                return
            if self._stopped():
                raise Cancelled("the transfer was stopped; what has arrived is kept")
            number, first = next(iter(self._open.items()))
            if not first.data:
                self._ask()
                self._receive()
                continue
            del self._open[number]
            self._ask()
            yield first
            # The caller's time is not the master's silence.
            self._heard_at = self._clock.now()

    def _ask(self) -> None:
        for number, request in self._open.items():
            if request.sent:
                continue
            place = request.part, request.blob, request.offset, request.length
            try:
                self._spoke.send(Fetch(self._epoch, number, self._pack, *place), timeout_s=0.0)
            except Unreachable:
                return
            request.sent = True
            self._requested_at = self._clock.now()

    def _receive(self) -> None:
        try:
            envelope = self._spoke.recv(0.1)
        except DuplicateName as error:
            # The master has not seen yet that this worker's previous connection ended, or another process has its name.
            self._duplicate = error
            envelope = None
        if envelope is None:
            self._check_silence()
            return
        message = envelope.message
        if not isinstance(message, FileChunk | FetchFailed) or message.epoch != self._epoch:
            return
        request = self._open.get(message.number)
        if request is None or request.data:
            return
        if isinstance(message, FetchFailed):
            raise PeerError(f"the master does not give {request.label}: {message.message}")
        assert envelope.tensor is not None  # as its codec checks
        expected, count = request.length, len(envelope.tensor)
        if request.part == "manifest":  # only the answers tell its size
            expected = min(expected, max(0, message.total - request.offset))
        if count != expected or not count:
            raise ProtocolError(f"the master sent {count} bytes as {request.label}, not {expected}")
        request.data, request.total = envelope.tensor, message.total
        self._duplicate = None
        now = self._clock.now()
        if now - self._heard_at < 0.1:
            self._chunk = min(2 * self._chunk, 1 << 20)
        elif now - self._heard_at > 0.5:
            self._chunk = max(self._chunk // 2, LEAST_CHUNK)
        self._heard_at = now

    def _check_silence(self) -> None:
        now = self._clock.now()
        if now - self._heard_at >= 10.0:
            if self._duplicate is not None:
                raise self._duplicate
            raise PeerError(
                f"no byte has come from the master for {now - self._heard_at:.0f} s ({self._spoke.address}): is it "
                "running, and is its port for files reachable from here?"
            )
        if now - self._requested_at >= 2.0:
            for request in self._open.values():
                request.sent = bool(request.data)
