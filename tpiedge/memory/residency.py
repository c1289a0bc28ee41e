"""Decides which weights are in memory and what is read next (TPI-LLM, section 3.3). Pure.

The engine passes the blocks in order, sweep after sweep. A block has one piece of each matrix. A piece is pinned in its
own place, or streamed through a ring.

Laws

1. A block is ready only when all its pieces are read.
2. Memory is not reused or given back while it is used or written to. A piece has one place at a time.
3. An entered block becomes ready once all requested reads are complete.
4. Pins change only between blocks. An unpinned piece is dropped before the next read, or at the end of its own read.
"""

from collections import deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, chain, count

from tpiedge.errors import InternalError

_NO_USE = -1


@dataclass(frozen=True, slots=True)
class Read:
    """Instruction to read `piece` to `offset` of the ring (None: to the piece's place); then call `loaded(ticket)`."""

    ticket: int
    piece: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Drop:
    """Instruction to give back the pages of `piece` (None: of the ring)."""

    piece: int | None


Instruction = Read | Drop


@dataclass(slots=True)
class _Entry:
    """A stretch of the ring. `use` numbers the uses of pieces over all sweeps."""

    use: int
    offset: int
    nbytes: int
    here: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


def smallest_ring(blocks: Sequence[Sequence[int]], pinned: Set[int]) -> int:
    """Returns the fewest bytes of a ring with which every block can become ready."""
    rings = (
        sum(sizes) + (max(sizes) if len(sizes) > 1 else 0) for sizes in streamed(blocks, pinned) if sizes
    )
    return max(rings, default=0)


def streamed(blocks: Sequence[Sequence[int]], pinned: Set[int]) -> list[list[int]]:
    numbers = count()
    return [[size for size in sizes if next(numbers) not in pinned] for sizes in blocks]


class Residency:
    """Each event returns instructions, which the caller obeys in order. `enter` and `leave` alternate. Piece
    numbers run on from block to block."""

    def __init__(
        self, blocks: Sequence[Sequence[int]], ring_bytes: int, pinned: Set[int], reading_bytes: int
    ) -> None:
        """`blocks` has the bytes of each block's pieces. `reading_bytes` limits the bytes being read. Raises
        InternalError if the ring is too small."""
        self._blocks = tuple(map(tuple, blocks))
        self._sizes = tuple(chain.from_iterable(blocks))
        self._first = (0, *accumulate(map(len, blocks)))
        self._ring_bytes = ring_bytes
        self._reading_limit = reading_bytes
        self._wanted: frozenset[int] = frozenset()
        self._pins: dict[int, bool] = {}  # whether it is here; else a read is under way
        self._lingering: set[int] = set()  # pinned, but not wanted any more
        self._ring: deque[_Entry] = deque()
        self._ring_filled = False
        self._streamed: dict[int, _Entry] = {}  # by use
        self._reads: dict[int, _Entry | int] = {}  # by ticket; an int is a pinned piece
        self._ticket = 0
        self._reading = 0
        self._at = 0  # the block that is entered, or expected next, counted through all sweeps
        self._entered = False
        self._cursor = 0  # the first use that is not looked at yet
        self._want(pinned)

    def start(self) -> list[Instruction]:
        return list(self._advance())

    def enter(self, block: int) -> list[Instruction]:
        """Notes that the block is needed now."""
        if self._entered:
            raise InternalError(f"block {block} was entered inside block {self._at % len(self._blocks)}")
        self._at += (block - self._at) % len(self._blocks)
        self._entered = True
        return self._settle()

    def leave(self) -> list[Instruction]:
        if not self._entered:
            raise InternalError("a block was left that was not entered")
        self._entered = False
        self._at += 1
        return self._settle()

    def loaded(self, ticket: int) -> list[Instruction]:
        """Notes that the read `ticket` is complete and checked."""
        read = self._reads.pop(ticket)
        if isinstance(read, _Entry):
            read.here = True
            self._reading -= read.nbytes
        else:
            self._pins[read] = True
            self._reading -= self._sizes[read]
        return self._settle()

    def repin(self, pinned: Set[int]) -> list[Instruction]:
        """Pins exactly these pieces from now on. Call it between two blocks."""
        if self._entered:
            raise InternalError("the pins change inside a block")
        self._want(pinned)
        # From the first use of an unpinned piece on, or from the start if the ring goes, pieces are read again.
        passed = [use for use in map(self._next_use, self._lingering) if use < self._cursor]
        self._cursor = self._front if self._all_wanted else min(passed, default=self._cursor)
        for entry in self._ring:
            if entry.use >= self._cursor:
                del self._streamed[entry.use]
                entry.use = _NO_USE
        return self._settle()

    def places(self, block: int) -> "list[int | None] | None":
        """Returns the ring offset of each piece of the block (None: pinned). Returns None if the block is not ready."""
        found: list[int | None] = []
        for use, piece in enumerate(range(self._first[block], self._first[block + 1]), self._front):
            entry = self._streamed.get(use)
            if not (self._pins.get(piece, False) if entry is None else entry.here):
                return None
            found.append(None if entry is None else entry.offset)
        return found

    @property
    def idle(self) -> bool:
        return not self._reads

    def _want(self, pinned: Set[int]) -> None:
        needed = smallest_ring(self._blocks, pinned)
        if needed > self._ring_bytes:
            raise InternalError(f"a ring of {self._ring_bytes} bytes is too small: {needed} are needed")
        self._wanted = frozenset(pinned)
        self._lingering = self._pins.keys() - self._wanted

    @property
    def _front(self) -> int:
        sweep, number = divmod(self._at, len(self._blocks))
        return sweep * len(self._sizes) + self._first[number]

    def _next_use(self, piece: int) -> int:
        front = self._front
        return front + (piece - front) % len(self._sizes)

    def _settle(self) -> list[Instruction]:
        self._cursor = max(self._cursor, self._front)
        # Used pieces leave the ring, oldest first, up to one to which a read still writes.
        while self._ring and self._ring[0].use < self._front and self._ring[0].here:
            self._streamed.pop(self._ring.popleft().use, None)
        while self._ring and self._ring[-1].use == _NO_USE and self._ring[-1].here:
            self._ring.pop()
        gone = [piece for piece in sorted(self._lingering) if self._pins[piece]]
        for piece in gone:  # no read writes to it
            self._lingering.remove(piece)
            del self._pins[piece]
        empty = self._ring_filled and self._all_wanted and not self._ring
        self._ring_filled = self._ring_filled and not empty
        return [*map(Drop, gone), *([Drop(None)] if empty else ()), *self._advance()]

    @property
    def _all_wanted(self) -> bool:
        return len(self._wanted) == len(self._sizes)

    def _advance(self) -> Iterator[Instruction]:
        if not self._sizes or self._reading >= self._reading_limit:
            return
        if self._all_wanted and self._ring and self._ring[-1].use < self._front:
            return  # the ring is dropped first, and pins take its place
        yield from self._next_reads()
        later = [use for use in map(self._next_use, self._wanted - self._pins.keys()) if use >= self._cursor]
        for use in sorted(later):  # pieces before the cursor are in the ring this time
            if self._reading >= self._reading_limit:
                return
            yield self._read_pin(use % len(self._sizes))

    def _next_reads(self) -> Iterator[Read]:
        """Yields reads up to the first piece that must wait."""
        while self._reading < self._reading_limit and self._cursor < self._front + len(self._sizes):
            piece = self._cursor % len(self._sizes)
            if piece in self._wanted and piece not in self._pins:
                yield self._read_pin(piece)
            elif piece in self._lingering and not self._pins[piece]:
                return  # it is dropped once it is read: nothing may rely on it
            elif piece not in self._pins:
                offset = self._room(self._sizes[piece])
                if offset is None:
                    return
                entry = _Entry(self._cursor, offset, self._sizes[piece])
                self._ring.append(entry)
                self._ring_filled = True
                self._streamed[entry.use] = entry
                yield self._read(piece, entry)
            self._cursor += 1

    def _read_pin(self, piece: int) -> Read:
        self._pins[piece] = False
        return self._read(piece, None)

    def _read(self, piece: int, entry: _Entry | None) -> Read:
        self._reading += self._sizes[piece]
        self._ticket += 1
        self._reads[self._ticket] = piece if entry is None else entry
        return Read(self._ticket, piece, None if entry is None else entry.offset)

    def _room(self, nbytes: int) -> int | None:
        if not self._ring:
            return 0 if nbytes <= self._ring_bytes else None
        oldest, newest = self._ring[0], self._ring[-1]
        if newest.use == _NO_USE:  # it is dropped first, so that the ring is in the order of use
            return None
        if newest.offset < oldest.offset:  # the used part goes around the end
            return newest.end if newest.end + nbytes <= oldest.offset else None
        if newest.end + nbytes <= self._ring_bytes:
            return newest.end
        return 0 if nbytes <= oldest.offset else None
