"""Fills a worker's shard store with a share of a pack.

Damaged ranges are requested again. `fetch` syncs every 64 MB or 2 s. After a crash, it resumes from the last sync.
"""

import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

from tpiedge.clock import Clock, MonotonicClock
from tpiedge.errors import Cancelled, DiskFull, PeerError, ProtocolError
from tpiedge.pack.files import FileLock
from tpiedge.pack.layout import HashedRange
from tpiedge.pack.manifest import MAX_MANIFEST_BYTES
from tpiedge.pack.reader import Pack
from tpiedge.pack.shard_copy import LayerRanges, ShardCopy, ranges_nbytes
from tpiedge.pack.share import NodeShare
from tpiedge.pack.store import ShardStore
from tpiedge.progress import ProgressCallback
from tpiedge.shipping.window import LEAST_CHUNK, FileBytes, RequestWindow
from tpiedge.transport.endpoint import Endpoint
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire.epochs import Prefetch, Prepare
from tpiedge.wire.fields import ShareRanges, rate_of

FILES_HUB = "files"

_log = logging.getLogger(__name__)

Report = Callable[[int, int, float], None]
"""Takes (bytes done, bytes in all, bytes per second)."""
_ATTEMPTS = 3


def fetch(
    spoke: Endpoint,
    store: ShardStore,
    identity: str,
    wanted: ShareRanges,
    progress: ProgressCallback = lambda _done, _total: None,
    *,
    local: Sequence[Pack] = (),
    evict: bool = True,
    stopped: Callable[[], bool] = lambda: False,
    sync_bytes: int = 64 << 20,
    clock: Clock | None = None,
) -> ShardCopy:
    """Links blobs of the `local` packs, then fetches the missing ranges of `wanted`. The caller closes the returned
    copy. `evict` allows deleting unused packs. Raises PeerError, DiskFull, UserError, Cancelled, EndpointClosed."""
    clock = clock or MonotonicClock()
    window = RequestWindow(spoke, identity, clock, stopped)
    if not store.has(identity):
        store.adopt_manifest(_manifest(window), identity)
    copy = store.open(identity)
    try:
        share = copy.pack.share_of(wanted)
        with FileLock(copy.path / "fetching") as lock:
            lock.wait_alone(3600.0, f"the pack {identity[:12]} is being fetched", stopped)
            for pack in local:
                copy.import_from(pack)
            _fetch_tables(window, copy, share)
            missing = copy.missing(share)
            left = ranges_nbytes(missing)
            total = sum(copy.pack.share_bytes(layer, share) for layer in copy.pack.unique_layers)
            if missing and evict:
                store.make_room(left)
            elif missing:  # another share, which may be needed first, must find room
                store.check_spare_room(left, total)

            def count(arrived: int) -> None:
                nonlocal left
                left -= arrived
                progress(total - left, total)

            count(0)
            for _ in range(_ATTEMPTS):
                if missing:
                    missing = _transfer(window, copy, missing, count, sync_bytes)
            if missing:
                layer, ranges = next(iter(missing.items()))
                raise PeerError(
                    f"{ranges[0].label} of layer {layer} arrived damaged {_ATTEMPTS} times (its "
                    "sha256 differs): run `tpiedge pack --verify` on the master, and check the memory of both computers"
                )
    except BaseException:
        copy.close()
        raise
    return copy


def _transfer(
    window: RequestWindow, copy: ShardCopy, parts: LayerRanges, count: Callable[[int], None], sync_bytes: int
) -> LayerRanges:
    """Writes arriving bytes. Returns damaged ranges."""
    damaged = {}
    spans = (_spans(layer, copy.pack.blob_id(layer), ranges) for layer, ranges in parts.items())
    arriving = window.stream(chain.from_iterable(spans))
    pending: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="tpiedge-sync") as pool:
        for layer, ranges in parts.items():
            writer = copy.writer(layer, ranges)
            written, since = 0, time.monotonic()
            try:
                while not writer.complete:
                    data = next(arriving).data
                    writer.write(data)
                    count(len(data))
                    written += len(data)
                    if written >= sync_bytes or time.monotonic() - since >= 2.0:
                        pending.append(pool.submit(writer.commit, writer.pop_verified()))
                        written, since = 0, time.monotonic()
                    while pending and (pending[0].done() or len(pending) > 2):
                        pending.popleft().result()
            finally:
                # Even if the transfer breaks off: verified ranges need not be fetched again.
                pending.append(pool.submit(writer.commit, writer.pop_verified()))
                pending.append(pool.submit(writer.close))
            if writer.damaged:
                damaged[layer] = writer.damaged
    for commit in pending:
        commit.result()
    count(-ranges_nbytes(damaged))
    return damaged


def _manifest(window: RequestWindow) -> bytes:
    data, total = b"", 1
    while len(data) < total:
        request = FileBytes("manifest", 0, "", len(data), LEAST_CHUNK)
        (arrived,) = window.stream(iter([request]))
        data, total = data + arrived.data, arrived.total
        if total > MAX_MANIFEST_BYTES:
            raise ProtocolError(f"the master has a manifest of {total} bytes; no pack has such a one")
    return data


def _fetch_tables(window: RequestWindow, copy: ShardCopy, share: NodeShare) -> None:
    spans = (
        FileBytes("hashes", layer, copy.pack.blob_id(layer), 0, copy.table_bytes(layer))
        for layer in copy.missing_tables(share)
    )
    data = bytearray()
    for arrived in window.stream(spans):
        data += arrived.data
        if len(data) == copy.table_bytes(arrived.layer):
            copy.adopt_table(arrived.layer, bytes(data))
            data.clear()


def _spans(layer: int, blob: str, ranges: Sequence[HashedRange]) -> Iterator[FileBytes]:
    start = end = ranges[0].offset
    for item in ranges:
        if item.offset != end:
            yield FileBytes("blob", layer, blob, start, end - start)
            start = item.offset
        end = item.offset + item.length
    yield FileBytes("blob", layer, blob, start, end - start)


class Provision:
    """Runs an agent's transfers, one at a time. `connect` opens a spoke to the master's files hub."""

    def __init__(
        self, connect: Callable[[], ZmqSpoke], store: ShardStore, clock: Clock, local: Sequence[Pack] = ()
    ) -> None:
        self._connect = connect
        self._store = store
        self._clock = clock
        self._local = local
        self._fetch = functools.partial(fetch, local=local, clock=clock)
        self._told: set[str] = set()
        self._lock = threading.Lock()  # the master takes one connection of this worker

    def fetch(self, order: Prepare, report: Report, cancelled: threading.Event, *, verify: bool) -> ShardCopy:
        """Fetches the ordered share. The caller closes the copy. `verify` checks the disk first."""
        with self._locked(cancelled):
            if verify and self._store.has(order.pack):
                with self._store.open(order.pack) as copy:
                    copy.mark_missing(copy.verify(copy.pack.share_of(order.share), fast=True))
            with self._connect() as spoke:
                told = _rated(report, self._clock)  # its seconds count from here
                place = spoke, self._store, order.pack, order.share
                copy = self._fetch(*place, told, stopped=cancelled.is_set)
        if copy.id not in self._told:
            self._told.add(copy.id)
            for pack in self._local:
                if not copy.shared_with(pack):  # a folder that the user named in vain
                    _log.warning(
                        "%s is not the model that the master serves (no layer is the same): the weights come from the "
                        "master",
                        pack.path,
                    )
        return copy

    def prefetch(self, order: Prefetch, cancelled: threading.Event) -> None:
        """Fetches the shares that fit without eviction. Raises DiskFull at the end if some did not fit."""
        full: DiskFull | None = None
        with self._locked(cancelled), self._connect() as spoke:
            for share in order.shares:
                place = spoke, self._store, order.pack, share
                try:
                    self._fetch(*place, evict=False, stopped=cancelled.is_set).close()
                except DiskFull as error:  # other shares may need less
                    full = error
        if full is not None:
            raise full

    def held_bytes(self, pack: str) -> int:
        """Returns how many bytes of the pack's layers are on this disk."""
        if not self._store.has(pack):
            return 0
        with self._store.open(pack) as copy:
            return ranges_nbytes(copy.held())

    @contextlib.contextmanager
    def _locked(self, cancelled: threading.Event) -> Iterator[None]:
        """Holds the lock. Raises Cancelled if `cancelled` is set first."""
        while not self._lock.acquire(timeout=0.1):
            if cancelled.is_set():
                raise Cancelled("it was cancelled before it began")
        try:
            yield
        finally:
            self._lock.release()


def _rated(report: Report, clock: Clock) -> ProgressCallback:
    started = due = clock.now()
    first: int | None = None

    def progress(done: int, total: int) -> None:
        nonlocal due, first
        now = clock.now()
        first = done if first is None else first
        if now >= due or done >= total:
            due = now + 0.3
            report(done, total, rate_of(done - first, max(now - started, 1e-3)))

    return progress
