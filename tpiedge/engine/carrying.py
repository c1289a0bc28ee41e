"""KV transfer from one epoch to the next, instead of prefilling again.

At an epoch's end every node writes heads that this machine's next node needs to a file, and rank 0 also heads that
nodes elsewhere will lack (`planner/carriage.py`). In the next epoch every node reads its machine's file into the first
pages of its cache, and rank 0 sends the rest. They count only if every node has all its heads.

A file is a nonce, the header's length, the header (JSON, without tokens), and parts by head, page and layer, encrypted
with a key in this machine's processes. Opening a file deletes it, as does a failed write.
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
from tpiedge.engine.sequence import CarriedSequence
from tpiedge.errors import ProtocolError
from tpiedge.pack.share import Share, kv_share
from tpiedge.units import MIB
from tpiedge.wire.control import Carried
from tpiedge.wire.data import LeavePages

#: Chunks under way: within what a node holds of early messages.
_AHEAD: Final = 8
_NO_PLACE: Final = "this machine has no place for it"
_NONCE_BYTES: Final = 16
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True)
class Locker:
    """The folder in which this machine's nodes leave files for each other, and the key to them."""

    folder: Path
    key: bytes = field(repr=False)

    def path(self, epoch: int) -> Path:
        return self.folder / str(epoch)

    def clear(self) -> None:
        """Raises OSError."""
        for path in self.folder.glob("*"):
            path.unlink(missing_ok=True)


class _Cipher:
    """XORs with a keystream: SHAKE-128 of key, nonce and a label that each part of the file has alone."""

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


class FileHeader(msgspec.Struct, frozen=True):
    """The first part of a file. `facts` as in Carrier."""

    facts: Sequence[str]
    heads: Sequence[int]
    pages: int
    sequences: Sequence[CarriedSequence] = ()


class LeftFile:
    """The file being written. The first error is kept in `error`."""

    def __init__(self, locker: Locker, epoch: int, said: FileHeader, stack: ExitStack) -> None:
        self.error = ""
        self._path = locker.path(epoch)
        self._parts = 0
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._cipher = _Cipher(locker.key, nonce)
        header = msgspec.json.encode(said)
        try:
            locker.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = stack.enter_context(os.fdopen(descriptor, "wb", buffering=0))
            self._write(nonce + _LENGTH.pack(len(header)) + self._cipher.header(header))
        except OSError as error:
            self._fail(error)

    def add(self, parts: NDArray[np.uint8]) -> None:
        if not self.error:
            self._write(self._cipher.parts(parts, self._parts).data)
            self._parts += len(parts)

    def discard(self) -> None:
        """Deletes the file. If that fails, the next node here finds and tells it."""
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
        self.discard()  # a full disk has room again


class FoundFile:
    """The file that was left here, deleted when opened; `error` says what is wrong with it."""

    def __init__(
        self, locker: Locker, carried: Carried, facts: Sequence[str], layers: int, stack: ExitStack
    ) -> None:
        self.error = ""
        self.said = FileHeader((), (), carried.pages)
        self._layers = layers
        path = locker.path(carried.epoch)
        try:
            self._file = file = stack.enter_context(path.open("rb"))
            path.unlink()
            self._cipher = _Cipher(locker.key, file.read(_NONCE_BYTES))
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if length > 4 * MIB:
                raise ValueError
            said = msgspec.json.decode(self._cipher.header(file.read(length)), type=FileHeader)
            if [*said.facts] != [*facts] or said.pages != carried.pages:
                raise ValueError
            if any(page not in range(said.pages) for one in said.sequences for page in one.pages):
                raise ValueError  # a flipped bit may read as another number
            self.said, self._start = said, file.tell()
        except (OSError, ValueError, struct.error, msgspec.DecodeError, RecursionError) as error:
            self.error = f"what was left cannot be read: {type(error).__name__}"

    def read(self, into: NDArray[np.uint8], head: int, page: int, first_layer: int) -> str:
        """Fills `into` ([layers, bytes of a part]) from `first_layer` on. Returns the error, or ""."""
        if head not in self.said.heads:
            return f"head {head} was not left here"
        first = (self.said.heads.index(head) * self.said.pages + page) * self._layers + first_layer
        try:
            self._file.seek(self._start + first * into.shape[1])
            data = self._file.read(into.nbytes)
        except OSError as error:
            return f"what was left cannot be read: {error.strerror}"
        if len(data) < into.nbytes:
            return "what was left is too short"
        into[:] = self._cipher.parts(np.frombuffer(data, np.uint8).reshape(into.shape), first)
        return ""


class Carrier:
    """One node's transfers. `locker`: None without a place on this machine. Both epochs must have the same `facts`.
    `progress` gets the bytes moved so far."""

    def __init__(
        self,
        engine: Engine,
        attention: Share,
        locker: Locker | None,
        facts: Sequence[str],
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._cache = engine.cache
        self._weights = engine.weights
        self._heads = kv_share(attention, engine.config.group_size)
        self._communicator = engine.communicator
        self._locker = locker
        self._progress = progress
        _, self._layers, _, self._part_bytes = self._cache.parts.shape
        self._facts = [*facts, str(self._layers), str(self._part_bytes)]
        self._number = 0
        self._moved_bytes = 0
        self._left: LeftFile | None = None

    def leave(
        self, order: LeavePages, stored: Sequence[int] = (), sequences: Sequence[CarriedSequence] = ()
    ) -> str:
        """Leaves what rank 0 orders. All ranks call it, rank 0 with the heads `stored` for nodes elsewhere and the
        sequences. Returns why nothing can be carried, or "". Raises PeerLost, ProtocolError."""
        unknown = any(page >= self._cache.pages for page in order.pages)
        if unknown or len(order.kept) != self._communicator.size:
            raise ProtocolError("node 0 carries pages or nodes that there are not")
        self._check_moves(order.sent, "sends")
        self._number = 0
        rank, own = self._communicator.rank, self._heads
        kept = sorted({head for head in (*range(*order.kept[rank]), *stored) if head in own})
        received = [] if rank else [head for _, head in order.sent]
        with ExitStack() as stack:
            self.discard()
            if self._locker is not None and (kept or received or rank == 0):
                said = FileHeader(self._facts, [*kept, *received], len(order.pages), sequences)
                self._left = LeftFile(self._locker, order.epoch, said, stack)
            left = self._left
            error = left.error if left is not None else _NO_PLACE if kept or rank == 0 else ""
            why = self._agreed(order.step, error)
            if not why:
                for head, page in itertools.product(kept, order.pages):
                    if left is not None:
                        left.add(self._cache.parts[page, :, head - self._heads.start])
                        self._moved(self._layers)
                self._collect(order, left)
                why = self._agreed(order.step, "" if left is None else left.error)
        if why:
            self.discard()
        return why

    def discard(self) -> None:
        """Deletes what was left. Idempotent."""
        if self._left is not None:
            self._left.discard()
            self._left = None

    def take(self, carried: Carried) -> tuple[Sequence[CarriedSequence], int]:
        """Fills the first pages of the cache. All ranks call it, before the first step. Returns how many pages, and on
        rank 0 the sequences, none if anything was missing. Raises PeerLost, ProtocolError."""
        self._check_moves(carried.brought, "brings")
        self._number = 0
        pages = range(min(carried.pages, self._cache.pages))
        self._cache.hold(len(pages))
        self._weights.make_room(self._cache.held_bytes)
        rank = self._communicator.rank
        brought = {head for to, head in carried.brought if to == rank}
        here = [head for head in self._heads if head not in brought]
        with ExitStack() as stack:
            found, error = None, _NO_PLACE if here or rank == 0 else ""
            if self._locker is not None and (here or rank == 0):
                found = FoundFile(self._locker, carried, self._facts, self._layers, stack)
                error = found.error
            if not error and len(pages) < carried.pages:
                error = "the cache has fewer pages"
            if self._agreed(0, error):
                return (), len(pages)
            if found is not None:
                error = self._fill(found, here, pages)
            error = self._distribute(carried, pages, found, error)
            missing = self._agreed(0, error)
            return () if missing or found is None else found.said.sequences, len(pages)

    def _fill(self, found: FoundFile, heads: Sequence[int], pages: Sequence[int]) -> str:
        block = np.empty((self._layers, self._part_bytes), np.uint8)
        for head, page in itertools.product(heads, pages):
            error = found.read(block, head, page, 0)
            if error:
                return error
            self._cache.parts[page, :, head - self._heads.start] = block
            self._moved(self._layers)
        return ""

    def _collect(self, order: LeavePages, left: LeftFile | None) -> None:
        group = self._communicator
        for source, head, page, layers in self._chunks(order.sent, order.pages, order.step, group.send_down):
            own = group.rank == source
            block = self._cache.parts[page, layers, head - self._heads.start] if own else self._empty(layers)
            arrived = group.send_up(_numbers(block), source, self._tag(order.step))
            if arrived is not None and left is not None:
                left.add(arrived.numpy().view(np.uint8))

    def _distribute(self, carried: Carried, pages: Sequence[int], found: FoundFile | None, error: str) -> str:
        group = self._communicator
        for target, head, page, layers in self._chunks(carried.brought, pages, 0, group.send_up):
            block = self._empty(layers)
            if found is not None and group.rank == 0 and not error:
                error = found.read(block, head, page, layers.start)
            arrived = group.send_down(_numbers(block), target, self._tag(0))
            if arrived is not None:
                parts = arrived.numpy().view(np.uint8)
                self._cache.parts[page, layers, head - self._heads.start] = parts
        return error

    def _agreed(self, step: int, error: str) -> str:
        """Tells every rank why not all can go on; "" if all can."""
        mine = torch.full((1, 1), float(bool(error)))
        for rank in range(1, self._communicator.size):
            said = self._communicator.send_up(mine, rank, self._tag(step))
            if said is not None and float(said[0, 0]) and not error:
                error = f"node {rank} could not"
        verdict = self._communicator.broadcast(torch.full((1, 1), float(bool(error))), self._tag(step))
        return error or ("another node could not" if float(verdict[0, 0]) else "")

    def _chunks(
        self,
        moves: Sequence[tuple[int, int]],
        pages: Sequence[int],
        step: int,
        answer: Callable[[torch.Tensor, int, Tag], torch.Tensor | None],
    ) -> Iterator[tuple[int, int, int, slice]]:
        """Yields (rank, head, page, layers), alike on every rank. Receivers answer every _AHEAD chunks."""
        size = max(1, MIB // self._part_bytes)
        travels = itertools.product(moves, pages, range(0, self._layers, size))
        for count, ((rank, head), page, first) in enumerate(travels, 1):
            layers = slice(first, min(first + size, self._layers))
            yield rank, head, page, layers
            if count % _AHEAD == 0:
                answer(torch.zeros(1, 1), rank, self._tag(step))
            if self._communicator.rank in (0, rank):
                self._moved(layers.stop - layers.start)

    def _empty(self, layers: slice) -> NDArray[np.uint8]:
        return np.zeros((layers.stop - layers.start, self._part_bytes), np.uint8)

    def _tag(self, step: int) -> Tag:
        self._number += 1
        return Tag(step, 0, self._number)

    def _moved(self, parts: int) -> None:
        self._moved_bytes += parts * self._part_bytes
        self._progress(self._moved_bytes)

    def _check_moves(self, moves: Sequence[tuple[int, int]], does: str) -> None:
        for rank, head in moves:
            own = rank == self._communicator.rank
            if not 0 < rank < self._communicator.size or (own and head not in self._heads):
                raise ProtocolError(f"the plan {does} KV head {head} of node {rank}, which has none such")


def _numbers(parts: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(parts).view(np.float32))
