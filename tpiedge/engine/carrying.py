"""Keys and values that the nodes of one epoch leave for those of the next, instead of having them computed anew.

In the epoch that ends rank 0 names the pages. Every node writes those of its heads that this machine's next node needs
to a file (`locker.py`), and rank 0 also what nodes elsewhere will lack (`planner/carriage.py`). In the next epoch every
node reads its machine's file into the first pages of its cache, and rank 0 sends the rest. They are used only where
every node has all of its heads; nothing travels where it is known before that one will not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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

_CHUNK_BYTES: Final = MIB
#: Chunks under way: fewer bytes than a node holds of what comes too early, and few enough messages.
_AHEAD: Final = 8
_NO_PLACE: Final = "this machine has no place for it"


@dataclass(frozen=True)
class Taken:
    """`sequences` have all of their keys and values in the first `pages` pages; none where something was missing."""

    sequences: tuple[CarriedSequence, ...]
    pages: int


class Carrier:
    """What one node, which has the KV heads `heads`, leaves and takes.

    `locker`: None where this machine has none. `facts`: what both epochs must have in common. `progress` is called with
    the bytes that were moved so far, for others to see that it gets on.
    """

    def __init__(
        self,
        cache: KVCache,
        weights: Weights,
        heads: Share,
        communicator: Communicator,
        locker: Locker | None,
        facts: Sequence[str],
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._cache = cache
        self._weights = weights
        self._heads = heads
        self._communicator = communicator
        self._locker = locker
        self._progress = progress
        _, self._layers, _, self._part_bytes = cache.parts.shape
        self._facts = [*facts, str(self._layers), str(self._part_bytes)]
        self._number = 0  # of the message that was sent last
        self._moved_bytes = 0
        self._left: LeftFile | None = None

    def leave(
        self, order: LeavePages, stored: Sequence[int] = (), sequences: Sequence[CarriedSequence] = ()
    ) -> str:
        """Does what rank 0 orders. Every rank calls it, rank 0 with the heads that are `stored` for nodes elsewhere,
        and the sequences that have the pages. Returns why nothing can be carried, "" where it can. Raises PeerLost,
        ProtocolError."""
        self._check(order)
        self._number = 0
        rank, own = self._communicator.rank, self._heads.units
        kept = sorted({head for head in (*range(*order.kept[rank]), *stored) if head in own})
        received = [] if rank else [head for _, head in order.sent]
        with ExitStack() as stack:
            left = self._begin(order, [*kept, *received], sequences, stack)
            why = self._agreed(order.step, left.error if left is not None else self._lacks(kept, rank))
            if not why:
                if left is not None:
                    self._write(left, kept, order.pages)
                self._collect(order, left)
                why = self._agreed(order.step, "" if left is None else left.error)
        if why:
            self.discard()
        return why

    def discard(self) -> None:
        """What was left is of no use: the epoch goes on, or somebody could not. Idempotent."""
        if self._left is not None:
            self._left.discard()
            self._left = None

    def take(self, carried: Carried) -> Taken:
        """Fills the first pages of the cache with what was left. Every rank calls it, before the first step. Returns on
        rank 0 whose they are. Raises PeerLost, ProtocolError."""
        self._check_moves(carried.brought, "brings")
        self._number = 0
        pages = range(min(carried.pages, self._cache.pages))
        self._cache.hold(len(pages))
        self._weights.make_room(self._cache.held_bytes)
        rank = self._communicator.rank
        brought = {head for to, head in carried.brought if to == rank}
        here = [head for head in self._heads.units if head not in brought]
        with ExitStack() as stack:
            found = self._found(carried, stack) if here or rank == 0 else None
            error = found.error if found is not None else _NO_PLACE if here or rank == 0 else ""
            if not error and len(pages) < carried.pages:
                error = "the cache has fewer pages"
            if self._agreed(0, error):
                return Taken((), len(pages))
            if found is not None:
                error = self._fill(found, here, pages)
            error = self._distribute(carried, pages, found, error)
            if self._agreed(0, error) or found is None:
                return Taken((), len(pages))
            return Taken(found.sequences, len(pages))

    # --- on the disk

    def _begin(
        self, order: LeavePages, heads: Sequence[int], sequences: Sequence[CarriedSequence], stack: ExitStack
    ) -> LeftFile | None:
        """None where this node has nothing to leave, or no place for it."""
        self.discard()
        if self._locker is not None and (heads or self._communicator.rank == 0):
            pages = len(order.pages)
            self._left = LeftFile(self._locker, order.epoch, self._facts, heads, pages, sequences, stack)
        return self._left

    def _lacks(self, kept: Sequence[int], rank: int) -> str:
        return _NO_PLACE if self._locker is None and (kept or rank == 0) else ""

    def _write(self, left: LeftFile, heads: Sequence[int], pages: Sequence[int]) -> None:
        for head in heads:
            for page in pages:
                left.add(self._cache.parts[page, :, head - self._heads.start])
                self._moved(self._layers)

    def _found(self, carried: Carried, stack: ExitStack) -> FoundFile | None:
        if self._locker is None:
            return None
        return FoundFile(self._locker, carried, self._facts, self._layers, stack)

    def _fill(self, found: FoundFile, heads: Sequence[int], pages: Sequence[int]) -> str:
        block = np.empty((self._layers, self._part_bytes), np.uint8)
        for head in heads:
            for page in pages:
                error = found.read(block, head, page, 0)
                if error:
                    return error
                self._cache.parts[page, :, head - self._heads.start] = block
                self._moved(self._layers)
        return ""

    # --- over the links

    def _collect(self, order: LeavePages, left: LeftFile | None) -> None:
        """Rank 0 gets what is sent to it, from one rank after the other. None is further ahead of it than _AHEAD."""
        rank = self._communicator.rank
        for count, (source, head, page, layers) in enumerate(self._chunks(order.sent, order.pages), 1):
            block = self._block(page, layers, head) if rank == source else self._empty(layers)
            arrived = self._communicator.send_up(_numbers(block), source, self._tag(order.step))
            if arrived is not None and left is not None:
                left.add(arrived.numpy().view(np.uint8))
            if count % _AHEAD == 0:
                self._communicator.send_down(torch.zeros(1, 1), source, self._tag(order.step))
            if rank in (0, source):
                self._moved(len(block))

    def _distribute(self, carried: Carried, pages: Sequence[int], found: FoundFile | None, error: str) -> str:
        """Rank 0 sends what others lack, to one after the other, and is no further ahead of it than _AHEAD. Returns
        what went wrong at this rank."""
        rank = self._communicator.rank
        for count, (target, head, page, layers) in enumerate(self._chunks(carried.brought, pages), 1):
            block = self._empty(layers)
            if found is not None and rank == 0 and not error:
                error = found.read(block, head, page, layers.start)
            arrived = self._communicator.send_down(_numbers(block), target, self._tag(0))
            if arrived is not None:
                parts = arrived.numpy().view(np.uint8)
                self._cache.parts[page, layers, head - self._heads.start] = parts
            if count % _AHEAD == 0:
                self._communicator.send_up(torch.zeros(1, 1), target, self._tag(0))
            if rank in (0, target):
                self._moved(len(block))
        return error

    def _agreed(self, step: int, error: str) -> str:
        """Why not every rank can go on, on all of them; "" where all can."""
        mine = torch.full((1, 1), float(bool(error)))
        for rank in range(1, self._communicator.size):
            said = self._communicator.send_up(mine, rank, self._tag(step))
            if said is not None and float(said[0, 0]) and not error:
                error = f"node {rank} could not"
        verdict = self._communicator.broadcast(torch.full((1, 1), float(bool(error))), self._tag(step))
        return error or ("another node could not" if float(verdict[0, 0]) else "")

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

    def _moved(self, parts: int) -> None:
        self._moved_bytes += parts * self._part_bytes
        self._progress(self._moved_bytes)

    def _check(self, order: LeavePages) -> None:
        if len(order.kept) != self._communicator.size or any(
            page >= self._cache.pages for page in order.pages
        ):
            raise ProtocolError("node 0 carries pages or nodes that there are not")
        self._check_moves(order.sent, "sends")

    def _check_moves(self, moves: Sequence[tuple[int, int]], does: str) -> None:
        for rank, head in moves:
            own = rank == self._communicator.rank
            if not 0 < rank < self._communicator.size or (own and head not in self._heads.units):
                raise ProtocolError(f"the plan {does} KV head {head} of node {rank}, which has none such")


def _numbers(parts: NDArray[np.uint8]) -> torch.Tensor:
    """The bytes as collectives take them; they travel as they are."""
    return torch.from_numpy(parts.view(np.float32))
