"""The master's side of shipping: a thread that answers requests for bytes of packs, fairly and in little memory.

Laws: only manifests, tables of hashes and blobs of layers leave, of packs that are served, within their bounds; the
embedding and the head, which belong to the prompt's side, never do. A worker has at most `MAX_OPEN_REQUESTS` requests
waiting; further ones are dropped. Workers take turns, one chunk each; one that does not read is passed over, and one
that asks without end keeps nobody waiting.
"""

import contextlib
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tpiedge.clock import Clock, MonotonicClock
from tpiedge.errors import PeerError, ReadFault, TpiedgeError, UserError
from tpiedge.pack.files import open_regular, read_exactly
from tpiedge.pack.identity import manifest_bytes, pack_id
from tpiedge.pack.reader import Pack
from tpiedge.rate_limited_log import RateLimitedLog
from tpiedge.transport.endpoint import Endpoint, EndpointClosed, LinkReset, Unreachable
from tpiedge.wire.codec import encode
from tpiedge.wire.files import Fetch, FetchFailed, FileChunk
from tpiedge.wire.flat import FLAT_BYTES
from tpiedge.wire.limits import MAX_FILE_CHUNK
from tpiedge.wire.tensors import TensorHeader

MAX_OPEN_REQUESTS = 8
"""Per worker. As many chunks may wait in the transport besides."""

_IDLE_S = 0.5
_BUSY_S = 0.1
_FORGET_S = 30.0
_OPEN_FILES = 32
_MESSAGE_CHARS = 1000
#: Messages that are read between two rounds of answers.
_BURST = 256
_log = logging.getLogger(__name__)


class ServedPack:
    """What of a pack may be shipped. Its manifest is kept in memory (at most 16 MiB). Raises UserError."""

    def __init__(self, pack: Pack) -> None:
        self.manifest = manifest_bytes(pack.path)
        self.id = pack_id(self.manifest)
        layers = {pack.blob_id(layer): layer for layer in range(pack.num_layers)}
        private = {pack.blob_id("embedding"), pack.blob_id("head")}
        self.blobs = {
            blob: (pack.blob_path(layer), pack.layout(layer).nbytes)
            for blob, layer in layers.items()
            if blob not in private
        }


@dataclass
class _Customer:
    """A worker's open requests."""

    queue: deque[Fetch] = field(default_factory=deque)
    blocked_until: float = 0.0
    seen_at: float = 0.0


class ShipServer:
    """Serves packs over `hub` (plane FILES), which it owns from `start` to `close`: only admitted workers get in."""

    def __init__(self, hub: Endpoint, packs: Sequence[Pack] = (), clock: Clock | None = None) -> None:
        self._hub = hub
        self._clock = clock or MonotonicClock()
        self._packs: Mapping[str, ServedPack] = {}
        self._customers: dict[str, _Customer] = {}
        self._files = _OpenFiles()
        self._frame = memoryview(bytearray(FLAT_BYTES + MAX_FILE_CHUNK))
        self._lock = threading.Lock()
        self._warnings = RateLimitedLog(_log, self._clock)
        self.dropped_requests = 0
        self._thread = threading.Thread(target=self._run, name="tpiedge-ship", daemon=True)
        for pack in packs:
            self.serve(pack)

    def start(self) -> None:
        self._thread.start()

    def serve(self, pack: Pack) -> str:
        """Serve `pack` too, from any thread; returns its id. Raises UserError."""
        served = ServedPack(pack)
        with self._lock:
            self._packs = {**self._packs, served.id: served}
        return served.id

    def withdraw(self, identity: str) -> None:
        """Refuse further requests for the pack."""
        with self._lock:
            self._packs = {known: pack for known, pack in self._packs.items() if known != identity}

    def close(self) -> None:
        """End the thread and close the hub. Idempotent."""
        self._hub.close()
        if self._thread.ident is not None:
            self._thread.join()
        self._files.close()

    def _run(self) -> None:
        with contextlib.suppress(EndpointClosed):
            while True:
                self._receive()
                self._serve_everyone()

    def _receive(self) -> None:
        """Queue what has come; wait for it only where there is nothing else to do."""
        timeout_s = self._patience()
        for _ in range(_BURST):
            try:
                envelope = self._hub.recv(timeout_s)
                if envelope is None:
                    return
                if isinstance(envelope.message, Fetch):
                    self._enqueue(envelope.sender, envelope.message)
            except LinkReset as error:
                self._forget_requests(error.peer)
            except PeerError as error:  # malformed: counted by the hub
                self._warnings.warning("%s", error)
            timeout_s = 0.0

    def _patience(self) -> float:
        now = self._clock.now()
        waiting = [customer for customer in self._customers.values() if customer.queue]
        if any(customer.blocked_until <= now for customer in waiting):
            return 0.0
        return _BUSY_S if waiting else _IDLE_S

    def _enqueue(self, sender: str, request: Fetch) -> None:
        customer = self._customers.setdefault(sender, _Customer())
        customer.seen_at = self._clock.now()
        if len(customer.queue) >= MAX_OPEN_REQUESTS or request in customer.queue:
            self.dropped_requests += 1
        else:
            customer.queue.append(request)

    def _forget_requests(self, sender: str) -> None:
        """Forgets the requests of the connection before: the worker has asked again, or will."""
        if sender in self._customers:
            self._customers[sender].queue.clear()

    def _serve_everyone(self) -> None:
        """One answer for each worker that waits for one."""
        now = self._clock.now()
        for name, customer in list(self._customers.items()):
            if customer.queue and customer.blocked_until <= now:
                self._serve_one(name, customer)
            elif now - customer.seen_at > _FORGET_S:
                del self._customers[name]

    def _serve_one(self, name: str, customer: _Customer) -> None:
        request = customer.queue[0]
        frame: bytes | memoryview
        try:
            frame = self._answer(request)
        except TpiedgeError as error:
            self._warnings.warning("refused a request of %s: %s", name, error)
            frame = encode(FetchFailed(request.epoch, request.number, str(error)[:_MESSAGE_CHARS]))
        try:
            self._hub.send_frame(frame, name, 0.0)
        except Unreachable:
            # Its queue is full, or it is gone.
            now = self._clock.now()
            customer.blocked_until = now + _BUSY_S
            if now - customer.seen_at > _FORGET_S:
                customer.queue.clear()
            return
        customer.queue.popleft()
        customer.seen_at = self._clock.now()

    def _answer(self, request: Fetch) -> memoryview:
        """The frame, in the one buffer that there is."""
        pack = self._packs.get(request.pack)
        if pack is None:
            raise UserError(f"the pack {request.pack[:12]} is not served here")
        if not 1 <= request.length <= MAX_FILE_CHUNK:
            raise UserError(f"{request.length} bytes at once: 1 to {MAX_FILE_CHUNK} are given")
        if request.part == "manifest":
            part = pack.manifest[request.offset : request.offset + request.length]
            return self._chunk(request, len(pack.manifest), len(part), part)
        if request.blob not in pack.blobs:
            raise UserError(f"{request.blob[:12]} is no layer of the pack {request.pack[:12]}")
        path, nbytes = pack.blobs[request.blob]
        if request.part == "hashes":
            path = path.parent / f"{path.name}.hashes"
            nbytes = self._files.size(path)
            length = max(0, min(request.length, nbytes - request.offset))
        else:
            length = request.length
            if request.offset + length > nbytes:
                raise UserError(f"bytes {request.offset} to {request.offset + length} of a blob of {nbytes}")
        into = self._frame[FLAT_BYTES : FLAT_BYTES + length]
        read_exactly(self._files.open(path), path, request.offset, into)
        return self._chunk(request, nbytes, length)

    def _chunk(self, request: Fetch, total: int, length: int, data: bytes = b"") -> memoryview:
        header = encode(FileChunk(request.epoch, request.number, total, TensorHeader("u8", (length,))))
        self._frame[:FLAT_BYTES] = header
        if data:
            self._frame[FLAT_BYTES : FLAT_BYTES + length] = data
        return self._frame[: FLAT_BYTES + length]


class _OpenFiles:
    """Descriptors of the files read lately. Raises ReadFault where one cannot be opened."""

    def __init__(self) -> None:
        self._fds: OrderedDict[Path, int] = OrderedDict()

    def open(self, path: Path) -> int:
        if path in self._fds:
            self._fds.move_to_end(path)
            return self._fds[path]
        try:
            fd = open_regular(path)
        except OSError as error:
            raise ReadFault(path, 0, 0, error.strerror or str(error)) from None
        self._fds[path] = fd
        if len(self._fds) > _OPEN_FILES:
            os.close(self._fds.popitem(last=False)[1])
        return fd

    def size(self, path: Path) -> int:
        return os.fstat(self.open(path)).st_size

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])
