"""Whether weights can be read as fast as they are computed with (TPI-LLM, section 3.3 and appendices A.3 to A.6).

The paper has two kinds of blocks in turn and a window that never limits the disk. Here blocks have times of their own,
pieces of any block may be pinned, and a ring has a number of bytes.

The model of a node. One disk reads the streamed pieces in the order of use, each as soon as the one before is read and
the ring has room for it, which is when enough blocks have left. A block is entered once the one before has left and
all its pieces are there, and leaves after its work, which is its computing and its all-reduce. What may stay empty at
the end of the ring, because a piece is not divided there, is left out.

Then nothing is waited for if and only if (the loose condition, generalised)
1. the work of a sweep takes as long as its reads (equations 4 and 9), and
2. for every piece and every block from its own on: the work from when there is room for the piece until the block is
   entered takes as long as the reads from the piece to the end of the block (equations 5, 6 and 10).
The tight condition asks of every block that the work of the one before covers its reads (proposition 4).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

from tpiedge.errors import InternalError
from tpiedge.memory.pinning import Placement, place
from tpiedge.memory.residency import streamed

_SWEEPS = 64
_SEARCH_STEPS = 64


@dataclass(frozen=True)
class Sides:
    """The two sides of a condition, in seconds: work and the reads that it is to cover."""

    work_s: float
    load_s: float

    @property
    def holds(self) -> bool:
        return self.work_s >= self.load_s

    @property
    def margin_s(self) -> float:
        return self.work_s - self.load_s


@dataclass(frozen=True)
class Streaming:
    """A node's sweep: of each block the seconds of work and the bytes of its streamed pieces; bytes of the ring; bytes
    per second of the disk. Raises InternalError if the ring does not hold a block."""

    work_s: Sequence[float]
    streamed: Sequence[Sequence[int]]
    ring_bytes: int
    disk_bytes_per_s: float

    def __post_init__(self) -> None:
        largest = max(map(sum, self.streamed), default=0)
        if largest > self.ring_bytes:
            raise InternalError(f"a ring of {self.ring_bytes} bytes cannot hold a block of {largest}")

    @property
    def sweep(self) -> Sides:
        """The work and the reads of a whole sweep."""
        return Sides(sum(self.work_s), sum(self._loads))

    @property
    def tight(self) -> Sides:
        """The sides of the block that is covered least by the one before it."""
        pairs = (
            Sides(self.work_s[block - 1], sum(sizes) / self.disk_bytes_per_s)
            for block, sizes in enumerate(self.streamed)
            if sizes
        )
        return min(pairs, key=_margin, default=Sides(0.0, 0.0))

    @cached_property
    def stretch(self) -> Sides:
        """The sides of the piece and the block that are covered least (condition 2)."""
        return min(self._stretches(), key=_margin, default=Sides(0.0, 0.0))

    @property
    def loose(self) -> bool:
        """Whether nothing is waited for."""
        return self.sweep.holds and self.stretch.holds

    @cached_property
    def stalls_s(self) -> tuple[float, ...]:
        """Seconds that each block is waited for in a sweep, on average over many sweeps."""
        # Who falls behind in every sweep starts with an empty ring, who does not with a full one: no start hides what
        # goes on later.
        keeps_up = self.sweep.holds
        left: list[float] = []  # when each block of the endless sequence left
        waited = [0.0] * len(self.work_s)
        now = disk = 0.0
        for use in range(_SWEEPS * len(self.work_s)):
            block = use % len(self.work_s)
            for load_s, behind in self._reads[block]:
                room = use - behind
                if room >= 0:
                    disk = max(disk, left[room]) + load_s
                elif not keeps_up:
                    disk += load_s
            entered = max(now, disk) if self.streamed[block] else now
            waited[block] += entered - now
            now = entered + self.work_s[block]
            left.append(now)
        return tuple(seconds / _SWEEPS for seconds in waited)

    @property
    def stall_s(self) -> float:
        """Seconds of waiting in a sweep."""
        return sum(self.stalls_s)

    @property
    def hidden(self) -> float:
        """The part of a sweep's reads that costs no time."""
        load_s = self.sweep.load_s
        return max(0.0, 1 - self.stall_s / load_s) if load_s else 1.0

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(self.streamed))

    @cached_property
    def _loads(self) -> tuple[float, ...]:
        return tuple(size / self.disk_bytes_per_s for size in self._sizes)

    @cached_property
    def _block_of(self) -> tuple[int, ...]:
        """The block of each streamed piece."""
        return tuple(block for block, sizes in enumerate(self.streamed) for _ in sizes)

    @cached_property
    def _behind(self) -> tuple[int, ...]:
        """How many blocks before the piece's own is the one that has left when there is room for it."""
        return tuple(map(self._blocks_behind, range(len(self._sizes))))

    def _blocks_behind(self, piece: int) -> int:
        count, first, held = len(self._sizes), piece, 0
        # A piece has one place at a time: the ring never holds more than a sweep.
        while piece - first < count and held + self._sizes[first % count] <= self.ring_bytes:
            held += self._sizes[first % count]
            first -= 1
        return self._block_of[piece] - (self._block_of[first % count] + first // count * len(self.work_s))

    @cached_property
    def _reads(self) -> tuple[tuple[tuple[float, int], ...], ...]:
        """For each block, (seconds to read, blocks behind) of its pieces."""
        pieces = iter(zip(self._loads, self._behind, strict=True))
        return tuple(tuple(next(pieces) for _ in sizes) for sizes in self.streamed)

    def _stretches(self) -> Iterator[Sides]:
        count, blocks = len(self._sizes), len(self.work_s)
        work_s = [0.0, *accumulate(chain(self.work_s, self.work_s, self.work_s))]
        loads = [0.0, *accumulate(chain(self._loads, self._loads))]
        last = [piece for piece in range(2 * count) if self._ends_block(piece)]
        for piece in range(count):
            room = blocks + self._block_of[piece] - self._behind[piece] + 1  # counted from a sweep earlier
            for end in last[bisect_left(last, piece) :]:
                if end >= piece + count:
                    break
                block = blocks + self._block_of[end % count] + end // count * blocks
                yield Sides(work_s[block] - work_s[room], loads[end + 1] - loads[piece])

    def _ends_block(self, piece: int) -> bool:
        at, following = piece % len(self._sizes), (piece + 1) % len(self._sizes)
        return not following or self._block_of[at] != self._block_of[following]


def steady_placement(
    blocks: Sequence[Sequence[int]], work_s: Sequence[float], disk_bytes_per_s: float
) -> Placement:
    """The least memory with which nothing is waited for. `blocks`: the bytes of each piece of each block; `work_s`:
    of each block."""

    def steady(nbytes: int) -> bool:
        found = place(blocks, nbytes)
        return isinstance(found, Placement) and streaming(blocks, work_s, found, disk_bytes_per_s).loose

    everything = sum(map(sum, blocks))
    found = place(blocks, _least(everything, steady))
    if not isinstance(found, Placement):
        raise InternalError("all weights do not fit into their own bytes")
    return found


def streaming(
    blocks: Sequence[Sequence[int]], work_s: Sequence[float], placement: Placement, disk_bytes_per_s: float
) -> Streaming:
    """The sweep of a node that holds its weights so."""
    return Streaming(work_s, streamed(blocks, placement.pinned), placement.ring_bytes, disk_bytes_per_s)


def _least(everything: int, steady: Callable[[int], bool]) -> int:
    """The smallest of some even steps up to `everything` that is steady."""
    steps = range(1, _SEARCH_STEPS)
    found = bisect_left(steps, True, key=lambda step: steady(step * everything // _SEARCH_STEPS))
    return everything if found == len(steps) else steps[found] * everything // _SEARCH_STEPS


def _margin(sides: Sides) -> float:
    return sides.margin_s
