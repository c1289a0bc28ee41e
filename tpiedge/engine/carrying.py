"""Keys and values that the nodes of one epoch leave for those of the next, instead of having them computed anew.

In the epoch that ends rank 0 names the pages. Every node writes those of its heads that this machine's next node needs
to a file (`locker.py`), and rank 0 also what nodes elsewhere will lack (`planner/carrying.py`). In the next epoch every
node reads its machine's file into the first pages of its cache, and rank 0 sends the rest. They are used only where
every node has all of its heads.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.engine.locker import FoundFile, LeftFile, Locker
from tpiedge.engine.sequence import CarriedSequence
from tpiedge.errors import ProtocolError
from tpiedge.kv.cache import KVCache
from tpiedge.memory.weights import Weights
from tpiedge.pack.share import Share
from tpiedge.units import MIB
from tpiedge.wire.control import Carried
from tpiedge.wire.data import LeavePages

__all__ = ["Carrier"]

_CHUNK_BYTES: Final = MIB
#: Chunks under way: fewer bytes than a node holds of what comes too early, and few enough messages.
_AHEAD: Final = 8


class Carrier:
    """One node's, with the KV heads `heads`. `locker`: None where this machine has none. `facts`: what both epochs must
    have in common."""

    def __init__(
        self,
        cache: KVCache,
        weights: Weights,
        heads: Share,
        communicator: Communicator,
        locker: Locker | None,
        facts: Sequence[str],
    ) -> None:
        self._cache = cache
        self._weights = weights
        self._heads = heads
        self._communicator = communicator
        self._locker = locker
        layers, part = cache.parts.shape[1], cache.parts.shape[3]
        self._facts = [*facts, str(layers), str(part)]
        self._layers, self._part_bytes = layers, part
        #: Of the next chunk.
        self._number = 0

    def leave(self, carry: LeavePages, sequences: Sequence[CarriedSequence] = ()) -> str:
        """Leaves what the plan says, with rank 0's `sequences`. Every rank calls it. Returns on rank 0 why nothing can
        be carried, "" where it can. Raises PeerLost, ProtocolError."""
        self._check(carry)
        rank, own = self._communicator.rank, _units(self._heads)
        kept = [head for head in range(*carry.kept[rank]) if head in own]
        if rank == 0:
            kept = sorted({*kept, *(head for head in carry.stored if head in own)})
        received = [head for _, head in carry.sent] if rank == 0 else []
        with ExitStack() as stack:
            written = LeftFile(stack)
            if kept or rank == 0:
                written.open(self._locker, carry.epoch)
                written.begin(self._facts, [*kept, *received], len(carry.pages), sequences)
            for head in kept:
                for page in carry.pages:
                    written.add(self._cache.parts[page, :, head - own.start])
            self._number = 0
            for source, head, page, layers in self._chunks(carry.sent, carry.pages):
                block = self._block(page, layers, head) if rank == source else self._empty(layers)
                arrived = self._communicator.send_up(_numbers(block), source, self._tag(carry.step))
                if arrived is not None:
                    written.add(arrived.numpy().view(np.uint8))
                if self._number % _AHEAD == 0:  # nobody is further ahead of rank 0 than that
                    self._communicator.broadcast(torch.zeros(1, 1), self._tag(carry.step))
        return self._agreed(carry.step, written.error)

    def take(self, carried: Carried) -> tuple[CarriedSequence, ...]:
        """Fills the first pages of the cache with what was left. Every rank calls it, before the first step. Returns on
        rank 0 the sequences that have all of theirs now. Raises PeerLost, ProtocolError."""
        rank = self._communicator.rank
        self._check_moves(carried.brought, "brings")
        with ExitStack() as stack:
            left = FoundFile(self._locker, carried, self._facts, self._layers, stack)
            error = left.error
            if not error and carried.pages > self._cache.pages:
                error = "the cache has fewer pages"
            pages = range(min(carried.pages, self._cache.pages))
            self._cache.hold(len(pages))
            self._weights.make_room(self._cache.held_bytes)
            brought = {head for to, head in carried.brought if to == rank}
            for head in _units(self._heads):
                if head not in brought and not error:
                    error = self._fill(left, head, pages)
            self._number = 0
            for target, head, page, layers in self._chunks(carried.brought, pages):
                block = self._empty(layers)
                if rank == 0 and not error:
                    error = left.read(block, head, page, layers.start)
                arrived = self._communicator.send_down(_numbers(block), target, self._tag(0))
                if arrived is not None:
                    parts = arrived.numpy().view(np.uint8).reshape(block.shape)
                    self._cache.parts[page, layers, head - self._heads.start] = parts
                if self._number % _AHEAD == 0:
                    self._communicator.gather(torch.zeros(1, 1), self._tag(0))
        return () if self._agreed(0, error) else left.sequences

    def _check(self, carry: LeavePages) -> None:
        if len(carry.kept) != self._communicator.size or any(
            page >= self._cache.pages for page in carry.pages
        ):
            raise ProtocolError("node 0 carries pages or nodes that there are not")
        self._check_moves(carry.sent, "sends")

    def _check_moves(self, moves: Sequence[tuple[int, int]], does: str) -> None:
        for rank, head in moves:
            own = rank == self._communicator.rank
            if not 0 < rank < self._communicator.size or (own and head not in _units(self._heads)):
                raise ProtocolError(f"the plan {does} KV head {head} of node {rank}, which has none such")

    def _fill(self, left: FoundFile, head: int, pages: Sequence[int]) -> str:
        block = np.empty((self._layers, self._part_bytes), np.uint8)
        for page in pages:
            error = left.read(block, head, page, 0)
            if error:
                return error
            self._cache.parts[page, :, head - self._heads.start] = block
        return ""

    def _agreed(self, step: int, error: str) -> str:
        """On rank 0 why a rank cannot; on others nothing."""
        bad = torch.full((1, 1), float(bool(error)))
        said = self._communicator.gather(bad, self._tag(step))
        if said is None or not any(float(one[0, 0]) for one in said):
            return ""
        failed = [rank for rank, one in enumerate(said) if float(one[0, 0])]
        return error or f"node {failed[0]} could not"

    def _chunks(
        self, moves: Sequence[tuple[int, int]], pages: Sequence[int]
    ) -> Iterator[tuple[int, int, int, slice]]:
        """(rank, head, page, layers) of what travels, the same on every rank."""
        size = max(1, _CHUNK_BYTES // self._part_bytes)
        for rank, head in moves:
            for page in pages:
                for first in range(0, self._layers, size):
                    yield rank, head, page, slice(first, min(first + size, self._layers))

    def _block(self, page: int, layers: slice, head: int) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self._cache.parts[page, layers, head - self._heads.start])

    def _empty(self, layers: slice) -> NDArray[np.uint8]:
        return np.zeros((layers.stop - layers.start, self._part_bytes), np.uint8)

    def _tag(self, step: int) -> Tag:
        self._number += 1
        return Tag(step, 0, self._number)


def _units(heads: Share) -> range:
    return range(heads.start, heads.stop)


def _numbers(parts: NDArray[np.uint8]) -> torch.Tensor:
    """The bytes as collectives take them; they travel as they are."""
    return torch.from_numpy(parts.view(np.float32))
