"""Moves keys and values from one epoch to the next, instead of a prefill.

At an epoch's end, every node saves a snapshot for the next node of its machine. Rank 0 also saves heads that others
will lack (`planner/kv_transfer.py`). In the next epoch, nodes read their snapshots. Rank 0 sends the missing
heads. Pages are used only if every node then has all its heads. A head has the KV head of `group_size` query heads
(`model/config.py`) in each layer that keeps keys.

A snapshot is a file of a nonce, the header's length, the header (JSON, without tokens) and extents (`kv/cache.py`),
sorted by head, page, layer. Header and extents are encrypted. Only this machine's processes hold the key.
"""

import contextlib
import hashlib
import itertools
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from tpiedge.collectives.communicator import Tag
from tpiedge.engine.forward import Engine
from tpiedge.engine.sequence import SavedSequence
from tpiedge.errors import ProtocolError
from tpiedge.kernels.kv_pages import PageLayout
from tpiedge.pack.share import Share, kv_share
from tpiedge.units import MIB
from tpiedge.wire.control import KVSnapshot
from tpiedge.wire.data import SavePages

#: Most chunks under way: within the limit of early messages that a node holds.
_AHEAD: Final = 8
_NO_FOLDER: Final = "this machine has no folder for it"
_NONCE_BYTES: Final = 16
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True)
class SnapshotStore:
    folder: Path
    key: bytes = field(repr=False)

    def path(self, epoch: int) -> Path:
        return self.folder / str(epoch)

    def clear(self) -> None:
        """Deletes all snapshots. Raises OSError."""
        for path in self.folder.glob("*"):
            path.unlink(missing_ok=True)


class _Cipher:
    """A stream cipher: XORs with SHAKE-128 of key, nonce and a part's label."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        self._begun = hashlib.shake_128(key + nonce)

    def parts(self, parts: NDArray[np.uint8], first: int) -> NDArray[np.uint8]:
        labels = range(first, first + len(parts))
        return parts ^ np.stack([self._stream(_LENGTH.pack(label), parts.shape[1]) for label in labels])

    def header(self, data: bytes) -> bytes:
        return (np.frombuffer(data, np.uint8) ^ self._stream(b"header", len(data))).tobytes()

    def _stream(self, label: bytes, nbytes: int) -> NDArray[np.uint8]:
        hashed = self._begun.copy()
        hashed.update(label)
        return np.frombuffer(hashed.digest(nbytes), np.uint8)


class SnapshotHeader(msgspec.Struct, frozen=True):
    """The first part of a snapshot. `facts` come from KVTransfer."""

    facts: Sequence[str]
    heads: Sequence[int]
    pages: int
    sequences: Sequence[SavedSequence] = ()


class SnapshotWriter:
    """Writes a snapshot. `error` is the first error's text, or ""."""

    def __init__(self, store: SnapshotStore, epoch: int, header: SnapshotHeader, stack: ExitStack) -> None:
        self.error = ""
        self._path = store.path(epoch)
        self._parts = 0
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._cipher = _Cipher(store.key, nonce)
        encoded = msgspec.json.encode(header)
        try:
            store.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = stack.enter_context(os.fdopen(descriptor, "wb", buffering=0))
            self._write(nonce + _LENGTH.pack(len(encoded)) + self._cipher.header(encoded))
        except OSError as error:
            self._fail(error)

    def add(self, parts: NDArray[np.uint8]) -> None:
        if not self.error:
            self._write(self._cipher.parts(parts, self._parts).data)
            self._parts += len(parts)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _write(self, data: bytes | memoryview) -> None:
        left = memoryview(data).cast("B")
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.error = f"it cannot be written: {error.strerror}"
        self.discard()  # gives a full disk room again


class SnapshotReader:
    """Reads and deletes this machine's snapshot. `error` says why the snapshot is unusable, or is ""."""

    def __init__(
        self, store: SnapshotStore, snapshot: KVSnapshot, facts: Sequence[str], extents: int, stack: ExitStack
    ) -> None:
        """`extents`: of a head in a page."""
        self.error = ""
        self.header = SnapshotHeader((), (), snapshot.pages)
        self._extents = extents
        path = store.path(snapshot.epoch)
        try:
            self._file = file = stack.enter_context(path.open("rb"))
            path.unlink()
            self._cipher = _Cipher(store.key, file.read(_NONCE_BYTES))
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if length > 4 * MIB:
                raise ValueError
            header = msgspec.json.decode(self._cipher.header(file.read(length)), type=SnapshotHeader)
            if [*header.facts] != [*facts] or header.pages != snapshot.pages:
                raise ValueError
            if any(page not in range(header.pages) for one in header.sequences for page in one.pages):
                raise ValueError  # a flipped bit may read as another number
            self.header, self._start = header, file.tell()
        except (OSError, ValueError, struct.error, msgspec.DecodeError, RecursionError) as error:
            self.error = f"the snapshot cannot be read: {type(error).__name__}"

    def read(self, into: NDArray[np.uint8], head: int, page: int, start: int) -> str:
        """Reads a head's and page's extents from `start` on into `into`, [extents, bytes]. Returns the error, or ""."""
        if head not in self.header.heads:
            return f"the snapshot lacks head {head}"
        first = (self.header.heads.index(head) * self.header.pages + page) * self._extents + start
        try:
            self._file.seek(self._start + first * into.shape[1])
            data = self._file.read(into.nbytes)
        except OSError as error:
            return f"the snapshot cannot be read: {error.strerror}"
        if len(data) < into.nbytes:
            return "the snapshot is too short"
        into[:] = self._cipher.parts(np.frombuffer(data, np.uint8).reshape(into.shape), first)
        return ""


class KVTransfer:
    """Saves and restores one node's keys and values. Both epochs must have equal `facts` (version, KV precision).
    `progress` gets the bytes moved so far."""

    def __init__(
        self,
        engine: Engine,
        attention: Share,
        store: SnapshotStore | None,
        facts: Sequence[str],
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._cache = engine.cache
        self._weights = engine.weights
        config = engine.config
        self._heads = kv_share(attention, config.group_size)
        self._communicator = engine.communicator
        self._store = store
        self._progress = progress
        nbytes = self._extent_bytes = self._cache.extents.shape[2]
        sizes = [one.attention.group_size for one in config.layers if one.attention.keys_of is None]
        kept = list(zip(self._cache.kept, sizes, strict=True))
        self._extents = sum(layout.head_bytes for layout, _ in kept) // nbytes
        #: The places of a head's extents in a page.
        self._places: dict[int, NDArray[np.int64]] = {}
        for head in self._heads:
            own = (
                (layout, head * config.group_size // size - attention.start // size) for layout, size in kept
            )
            self._places[head] = np.concatenate([_places(layout, kv, nbytes) for layout, kv in own])
        self._facts = [*facts, str(self._extents), str(nbytes)]
        self._number = 0
        self._moved_bytes = 0
        self._saved: SnapshotWriter | None = None

    def save(
        self, order: SavePages, stored: Sequence[int] = (), sequences: Sequence[SavedSequence] = ()
    ) -> str:
        """Saves the pages of rank 0's `order`. Every rank calls `save`. `stored` lists the heads that this node saves
        for other machines. Returns an error, or "". Raises PeerLost, ProtocolError."""
        unknown = any(page >= self._cache.pages for page in order.pages)
        if unknown or len(order.kept) != self._communicator.size:
            raise ProtocolError("node 0 saves pages or names nodes that do not exist")
        self._check_moves(order.gathered, "sends")
        self._number = 0
        rank, own = self._communicator.rank, self._heads
        kept = sorted({head for head in (*range(*order.kept[rank]), *stored) if head in own})
        received = [] if rank else [head for _, head in order.gathered]
        with ExitStack() as stack:
            self.discard()
            if self._store is not None and (kept or received or rank == 0):
                header = SnapshotHeader(self._facts, [*kept, *received], len(order.pages), sequences)
                self._saved = SnapshotWriter(self._store, order.epoch, header, stack)
            writer = self._saved
            error = writer.error if writer is not None else _NO_FOLDER if kept or rank == 0 else ""
            why = self._agreed(order.step, error)
            if not why:
                for head, page in itertools.product(kept, order.pages):
                    if writer is not None:
                        writer.add(self._cache.extents[page, self._places[head]])
                        self._moved(self._extents)
                self._gather(order, writer)
                why = self._agreed(order.step, "" if writer is None else writer.error)
        if why:
            self.discard()
        return why

    def discard(self) -> None:
        """Deletes the snapshot that `save` wrote. Idempotent."""
        if self._saved is not None:
            self._saved.discard()
            self._saved = None

    def restore(self, snapshot: KVSnapshot) -> tuple[Sequence[SavedSequence], int]:
        """Fills the cache's first pages. Every rank calls this before the first step. Returns (restored sequences,
        number of pages). Raises PeerLost, ProtocolError."""
        self._check_moves(snapshot.scattered, "brings")
        self._number = 0
        pages = range(min(snapshot.pages, self._cache.pages))
        self._cache.hold(len(pages))
        self._weights.make_room(self._cache.held_bytes)
        rank = self._communicator.rank
        received = {head for to, head in snapshot.scattered if to == rank}
        here = [head for head in self._heads if head not in received]
        with ExitStack() as stack:
            reader, error = None, _NO_FOLDER if here or rank == 0 else ""
            if self._store is not None and (here or rank == 0):
                reader = SnapshotReader(self._store, snapshot, self._facts, self._extents, stack)
                error = reader.error
            if not error and len(pages) < snapshot.pages:
                error = "the cache has fewer pages"
            if self._agreed(0, error):
                return (), len(pages)
            if reader is not None:
                error = self._fill(reader, here, pages)
            error = self._scatter(snapshot, pages, reader, error)
            missing = self._agreed(0, error)
            return () if missing or reader is None else reader.header.sequences, len(pages)

    def _fill(self, reader: SnapshotReader, heads: Sequence[int], pages: Sequence[int]) -> str:
        block = np.empty((self._extents, self._extent_bytes), np.uint8)
        for head, page in itertools.product(heads, pages):
            error = reader.read(block, head, page, 0)
            if error:
                return error
            self._cache.extents[page, self._places[head]] = block
            self._moved(self._extents)
        return ""

    def _gather(self, order: SavePages, writer: SnapshotWriter | None) -> None:
        group, step = self._communicator, order.step
        for rank, head, page, chunk in self._chunks(order.gathered, order.pages, step, group.send_down):
            own = group.rank == rank
            block = self._cache.extents[page, self._places[head][chunk]] if own else self._empty(chunk)
            arrived = group.send_up(_numbers(block), rank, self._tag(step))
            if arrived is not None and writer is not None:
                writer.add(arrived.numpy().view(np.uint8))

    def _scatter(self, snapshot: KVSnapshot, pages: range, reader: SnapshotReader | None, error: str) -> str:
        group = self._communicator
        for target, head, page, chunk in self._chunks(snapshot.scattered, pages, 0, group.send_up):
            block = self._empty(chunk)
            if reader is not None and group.rank == 0 and not error:
                error = reader.read(block, head, page, chunk.start)
            arrived = group.send_down(_numbers(block), target, self._tag(0))
            if arrived is not None:
                self._cache.extents[page, self._places[head][chunk]] = arrived.numpy().view(np.uint8)
        return error

    def _agreed(self, step: int, error: str) -> str:
        """Returns why some rank cannot go on, or ""."""
        mine = torch.full((1, 1), float(bool(error)))
        for rank in range(1, self._communicator.size):
            said = self._communicator.send_up(mine, rank, self._tag(step))
            if said is not None and float(said[0, 0]) and not error:
                error = f"node {rank} could not"
        failed = self._communicator.broadcast(torch.full((1, 1), float(bool(error))), self._tag(step))
        return error or ("another node could not" if float(failed[0, 0]) else "")

    def _chunks(
        self,
        moves: Sequence[tuple[int, int]],
        pages: Sequence[int],
        step: int,
        answer: Callable[[torch.Tensor, int, Tag], torch.Tensor | None],
    ) -> Iterator[tuple[int, int, int, slice]]:
        """Yields (rank, head, page, some of its extents), alike on every rank."""
        size = max(1, MIB // self._extent_bytes)
        chunks = itertools.product(moves, pages, range(0, self._extents, size))
        for count, ((rank, head), page, first) in enumerate(chunks, 1):
            chunk = slice(first, min(first + size, self._extents))
            yield rank, head, page, chunk
            if count % _AHEAD == 0:
                answer(torch.zeros(1, 1), rank, self._tag(step))
            if self._communicator.rank in (0, rank):
                self._moved(chunk.stop - chunk.start)

    def _empty(self, chunk: slice) -> NDArray[np.uint8]:
        return np.zeros((chunk.stop - chunk.start, self._extent_bytes), np.uint8)

    def _tag(self, step: int) -> Tag:
        self._number += 1
        return Tag(step, 0, self._number)

    def _moved(self, extents: int) -> None:
        self._moved_bytes += extents * self._extent_bytes
        self._progress(self._moved_bytes)

    def _check_moves(self, moves: Sequence[tuple[int, int]], does: str) -> None:
        for rank, head in moves:
            own = rank == self._communicator.rank
            if not 0 < rank < self._communicator.size or (own and head not in self._heads):
                raise ProtocolError(f"the plan {does} KV head {head} of node {rank}, which has none such")


def _places(layout: PageLayout, head: int, nbytes: int) -> NDArray[np.int64]:
    """Returns the places of a KV head's extents of `nbytes` in a page."""
    start = (layout.layer_offset + head * layout.head_bytes) // nbytes
    return np.arange(start, start + layout.head_bytes // nbytes)


def _numbers(extents: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(extents).view(np.float32))
