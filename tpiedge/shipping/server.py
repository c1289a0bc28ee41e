"""Answers requests for bytes of packs, in a thread of the master.

The thread sends manifests, tables of hashes and layers of served packs, nothing else. A worker may have 8 waiting
requests; further requests are dropped. Workers are served round robin, one chunk each time. A worker that does not read
is skipped.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tpiedge.clock import Clock, MonotonicClock
from tpiedge.errors import PeerError, TpiedgeError, UserError
from tpiedge.pack.files import OpenFile
from tpiedge.pack.hashes import RECORD_BYTES
from tpiedge.pack.manifest import MANIFEST_NAME, manifest_bytes
from tpiedge.pack.reader import Pack
from tpiedge.sanitise import RateLimitedLog, sanitised_line
from tpiedge.transport.endpoint import Endpoint, EndpointClosed, LinkReset, Unreachable
from tpiedge.wire.codec import FLAT_BYTES, encode
from tpiedge.wire.data import Fetch, FetchFailed, FileChunk, FilePart
from tpiedge.wire.fields import MAX_FILE_CHUNK, TensorHeader

_BUSY_S = 0.1
_FORGET_S = 30.0
_log = logging.getLogger(__name__)


def _files_of(pack: Pack) -> Mapping[tuple[FilePart, str], tuple[Path, int]]:
    """Returns (path, size) of the files that may be sent."""
    found: dict[tuple[FilePart, str], tuple[Path, int]] = {}
    found["manifest", ""] = pack.path / MANIFEST_NAME, len(manifest_bytes(pack.path))
    # Only rank 0 uses these.
    private = {pack.blob_id("embedding"), pack.blob_id("head")}
    for layer in pack.unique_layers:
        blob, path, layout = pack.blob_id(layer), pack.blob_path(layer), pack.layout(layer)
        if blob not in private:
            found["blob", blob] = path, layout.nbytes
            found["hashes", blob] = path.with_suffix(".hashes"), layout.range_count * RECORD_BYTES
    return found


@dataclass
class _Requester:
    queue: deque[Fetch] = field(default_factory=deque)
    blocked_until: float = 0.0
    seen_at: float = 0.0


class ShipServer:
    """Serves packs to admitted workers. Owns `hub` (plane FILES) from `start` to `close`."""

    def __init__(self, hub: Endpoint, packs: Sequence[Pack], clock: Clock | None = None) -> None:
        self._hub = hub
        self._clock = clock or MonotonicClock()
        self._packs: dict[str, Mapping[tuple[FilePart, str], tuple[Path, int]]] = {}
        for pack in packs:
            self.add(pack)
        self._requesters: dict[str, _Requester] = {}
        self._frame = memoryview(bytearray(FLAT_BYTES + MAX_FILE_CHUNK))
        self._warnings = RateLimitedLog(_log, self._clock.now)
        self._thread = threading.Thread(target=self._run, name="tpiedge-ship", daemon=True)

    def add(self, pack: Pack) -> None:
        """Serves one more pack. Thread-safe."""
        self._packs[pack.id] = _files_of(pack)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and closes the hub. Idempotent."""
        self._hub.close()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(EndpointClosed):
            while True:
                self._receive()
                now = self._clock.now()
                for name, requester in list(self._requesters.items()):  # one answer for each
                    if requester.queue and requester.blocked_until <= now:
                        self._serve_one(name, requester)
                    elif now - requester.seen_at > _FORGET_S:
                        del self._requesters[name]

    def _receive(self) -> None:
        now = self._clock.now()
        blocked = [
            requester.blocked_until > now for requester in self._requesters.values() if requester.queue
        ]
        timeout_s = 0.5
        if blocked:
            timeout_s = _BUSY_S if all(blocked) else 0.0
        for _ in range(256):  # at most, so that waiting workers get answers
            try:
                envelope = self._hub.recv(timeout_s)
                if envelope is None:
                    return
                request = envelope.message
                if isinstance(request, Fetch):
                    requester = self._requesters.setdefault(envelope.sender, _Requester())
                    requester.seen_at = self._clock.now()
                    # As many chunks again may wait in the transport.
                    if len(requester.queue) < 8 and request not in requester.queue:
                        requester.queue.append(request)
            except LinkReset as error:
                # The worker has asked again, or will, over its new connection.
                self._requesters.pop(error.peer, None)
            except PeerError as error:  # malformed: counted by the hub
                self._warnings.warning("%s", error)
            timeout_s = 0.0

    def _serve_one(self, name: str, requester: _Requester) -> None:
        request = requester.queue[0]
        frame: bytes | memoryview
        try:
            frame = self._answer(request)
        except TpiedgeError as error:
            why = sanitised_line(error)  # its path may not be UTF-8
            self._warnings.warning("refused a request of %s: %s", name, why)
            frame = encode(FetchFailed(request.epoch, request.number, why))
        try:
            self._hub.send_frame(frame, name, 0.0)
        except Unreachable:
            # The worker's queue is full, or the worker is gone.
            now = self._clock.now()
            requester.blocked_until = now + _BUSY_S
            if now - requester.seen_at > _FORGET_S:
                requester.queue.clear()
            return
        requester.queue.popleft()
        requester.seen_at = self._clock.now()

    def _answer(self, request: Fetch) -> memoryview:
        files = self._packs.get(request.pack)
        if files is None:
            raise UserError(f"the pack {request.pack[:12]} is not served here")
        if not 1 <= request.length <= MAX_FILE_CHUNK:
            raise UserError(f"{request.length} bytes at once: 1 to {MAX_FILE_CHUNK} are given")
        if (request.part, request.blob) not in files:
            raise UserError(f"{request.blob[:12]} is no layer of the pack {request.pack[:12]}")
        path, total = files[request.part, request.blob]
        length = request.length
        if request.part == "manifest":  # only the answers tell its size
            length = min(length, max(0, total - request.offset))
        if request.offset + length > total:
            raise UserError(f"bytes {request.offset} to {request.offset + length} of a file of {total}")
        with OpenFile(path) as file:
            file.read(request.offset, self._frame[FLAT_BYTES : FLAT_BYTES + length])
        header = encode(FileChunk(request.epoch, request.number, total, TensorHeader("u8", (length,))))
        self._frame[:FLAT_BYTES] = header
        return self._frame[: FLAT_BYTES + length]
