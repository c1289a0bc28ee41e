"""The worker's side of shipping: fill the shard store with a share of a pack.

Only what is missing is fetched. Bytes are compared with their sha256 as they arrive, before a range counts as
present; what arrived damaged is asked for again. After a crash of either side, or of both, the next `fetch` goes on
where the last one had made its ranges durable (every 64 MB or 2 s).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Self

from tpiedge.clock import Clock, MonotonicClock
from tpiedge.errors import PeerError, ProtocolError
from tpiedge.pack.identity import MAX_MANIFEST_BYTES
from tpiedge.pack.layout import HashedRange
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare
from tpiedge.pack.store.copy import LayerRanges, ShardCopy
from tpiedge.pack.store.filling import RangeWriter
from tpiedge.pack.store.store import ShardStore
from tpiedge.progress import ProgressCallback
from tpiedge.shipping.window import ArrivedBytes, CutRequest, RequestedBytes, RequestWindow
from tpiedge.transport.endpoint import Endpoint

_STALL_S = 10.0
_LOCK_WAIT_S = 3600.0
_SYNC_BYTES = 64 << 20
_SYNC_S = 2.0
_ATTEMPTS = 3
_PENDING_COMMITS = 2


def fetch(
    spoke: Endpoint,
    store: ShardStore,
    identity: str,
    share: NodeShare,
    progress: ProgressCallback = lambda _done, _total: None,
    *,
    local: Sequence[Pack] = (),
    evict: bool = True,
    stopped: Callable[[], bool] = lambda: False,
    stall_s: float = _STALL_S,
    lock_wait_s: float = _LOCK_WAIT_S,
    sync_bytes: int = _SYNC_BYTES,
    clock: Clock | None = None,
) -> ShardCopy:
    """The pack `identity` with everything that a node of `share` needs; in use until the caller closes it.

    `spoke` is connected to the master's hub of the plane FILES and used by no other thread meanwhile. `local` are
    whole packs on this computer: blobs that they have are linked instead of fetched. Another process that fetches the
    same pack into the same store is waited for (`lock_wait_s`). With `evict`, packs that nobody uses make room;
    without, nothing does, and room for a share as large is left. `progress` is told the bytes of the share that are
    here, and in all.

    Raises PeerError (silent for `stall_s`, refusing, or sending damaged bytes again and again), DiskFull, UserError,
    Cancelled (`stopped` said True), EndpointClosed (the spoke was closed).
    """
    clock = clock or MonotonicClock()
    window = RequestWindow(spoke, identity, clock, stall_s, stopped)
    if not store.has(identity):
        store.adopt_manifest(_manifest(window), identity)
    copy = store.open(identity)
    try:
        with copy.fetch_lock() as lock:
            lock.wait_alone(lock_wait_s, f"the pack {identity[:12]} is being fetched", stopped)
            for pack in local:
                copy.import_from(pack)
            _fetch_tables(window, copy, share)
            _Filling(window, store, copy, share, progress, sync_bytes, clock).run(evict=evict)
    except BaseException:
        copy.close()
        raise
    return copy


class _Filling:
    """Fetches the missing ranges of a share."""

    def __init__(
        self,
        window: RequestWindow,
        store: ShardStore,
        copy: ShardCopy,
        share: NodeShare,
        progress: ProgressCallback,
        sync_bytes: int,
        clock: Clock,
    ) -> None:
        self._window = window
        self._store = store
        self._copy = copy
        self._missing = copy.missing(share)
        self._progress = progress
        self._sync_bytes = sync_bytes
        self._clock = clock
        layers = [key for key in copy.pack.unique_keys if isinstance(key, int)]
        self._total = sum(copy.pack.share_bytes(layer, share) for layer in layers)
        self._left = sum(part.nbytes for part in self._missing)

    def run(self, *, evict: bool) -> None:
        if self._missing and evict:
            self._store.make_room(self._left)
        elif self._missing:  # so that another share, which may be needed before, finds room
            self._store.check_spare_room(self._left, self._total)
        self._progress(self._total - self._left, self._total)
        for _ in range(_ATTEMPTS):
            if not self._missing:
                return
            self._missing = self._transfer(self._missing)
        part = self._missing[0]
        raise PeerError(
            f"{part.ranges[0].label} of layer {part.layer} arrived damaged {_ATTEMPTS} times (its sha256 differs): run "
            "`tpiedge pack --verify` on the master, and check the memory of both computers"
        )

    def _transfer(self, parts: Sequence[LayerRanges]) -> list[LayerRanges]:
        """Fetch `parts` and return what of them arrived damaged."""
        damaged = []
        arriving = self._window.stream(_cut_parts(self._copy.pack, parts))
        with _Commits(self._sync_bytes, self._clock) as commits:
            for part in parts:
                bad = self._fill(part, arriving, commits)
                if bad:
                    damaged.append(LayerRanges(part.layer, tuple(bad)))
        self._left += sum(part.nbytes for part in damaged)
        return damaged

    def _fill(
        self, part: LayerRanges, arriving: Iterator[ArrivedBytes], commits: "_Commits"
    ) -> list[HashedRange]:
        writer = self._copy.writer(part)
        try:
            while not writer.complete:
                arrived = next(arriving)
                writer.write(arrived.data)
                self._left -= len(arrived.data)
                self._progress(self._total - self._left, self._total)
                commits.tick(writer, len(arrived.data))
        finally:
            # Also where the transfer breaks off: what is verified need not be fetched again.
            commits.finish(writer)
        return writer.damaged


class _Commits:
    """Makes verified ranges durable every so often, in a thread of its own: the transfer goes on meanwhile."""

    def __init__(self, sync_bytes: int, clock: Clock) -> None:
        self._sync_bytes = sync_bytes
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tpiedge-sync")
        self._pending: deque[Future[None]] = deque()
        self._bytes = 0
        self._since = clock.now()

    def tick(self, writer: RangeWriter, count: int) -> None:
        """`count` more bytes were written. Raises what an earlier commit has met."""
        self._bytes += count
        if self._bytes >= self._sync_bytes or self._clock.now() - self._since >= _SYNC_S:
            self._commit(writer)
        while self._pending and (self._pending[0].done() or len(self._pending) > _PENDING_COMMITS):
            self._pending.popleft().result()

    def finish(self, writer: RangeWriter) -> None:
        """Commit the rest and close the writer."""
        self._commit(writer)
        self._pending.append(self._pool.submit(writer.close))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        if kind is None:
            for commit in self._pending:
                commit.result()

    def _commit(self, writer: RangeWriter) -> None:
        self._pending.append(self._pool.submit(writer.commit, writer.take()))
        self._bytes, self._since = 0, self._clock.now()


def _manifest(window: RequestWindow) -> bytes:
    """The manifest, whose size only the answers tell."""
    data, total = b"", 1
    while len(data) < total:
        # One request at a time: a manifest is seldom larger than one brings.
        (arrived,) = window.stream(_one_of_manifest(len(data)))
        data, total = data + arrived.data, arrived.total
        if total > MAX_MANIFEST_BYTES:
            raise ProtocolError(f"the master has a manifest of {total} bytes; no pack has such a one")
    return data


def _one_of_manifest(offset: int) -> CutRequest:
    """One request, as large as is wanted at the moment."""
    asked = False

    def cut(limit: int) -> RequestedBytes | None:
        nonlocal asked
        first, asked = not asked, True
        return RequestedBytes("manifest", 0, "", offset, limit) if first else None

    return cut


def _fetch_tables(window: RequestWindow, copy: ShardCopy, share: NodeShare) -> None:
    """Fetch the tables of hashes that are missing."""
    layers = copy.missing_tables(share)
    spans = [
        RequestedBytes("hashes", layer, copy.pack.blob_id(layer), 0, copy.table_bytes(layer))
        for layer in layers
    ]
    data = bytearray()
    for arrived in window.stream(_cut(iter(spans))):
        data += arrived.data
        if len(data) == copy.table_bytes(arrived.requested.layer):
            copy.adopt_table(arrived.requested.layer, bytes(data))
            data.clear()


def _cut_parts(pack: Pack, parts: Sequence[LayerRanges]) -> CutRequest:
    return _cut(span for part in parts for span in _spans(pack, part))


def _spans(pack: Pack, part: LayerRanges) -> Iterator[RequestedBytes]:
    """Adjacent ranges as one."""
    blob = pack.blob_id(part.layer)
    start = end = part.ranges[0].offset
    for item in part.ranges:
        if item.offset != end:
            yield RequestedBytes("blob", part.layer, blob, start, end - start)
            start = item.offset
        end = item.offset + item.length
    yield RequestedBytes("blob", part.layer, blob, start, end - start)


def _cut(spans: Iterator[RequestedBytes]) -> CutRequest:
    """The spans, each cut into requests of the size that is wanted at the moment."""
    rest: RequestedBytes | None = None

    def cut(limit: int) -> RequestedBytes | None:
        nonlocal rest
        whole = rest or next(spans, None)
        if whole is None:
            return None
        length = min(limit, whole.length)
        left = whole.length - length
        rest = replace(whole, offset=whole.offset + length, length=left) if left else None
        return replace(whole, length=length)

    return cut
