"""Which pieces are pinned within so many bytes: a pure function.

Pinned pieces are spread evenly over the sweep, so that what is streamed comes at an even rate too. With pieces of one
size and room for every T-th of them this is the paper's retention period T (TPI-LLM, equations 9 and 10).

What the KV cache leaves free for the time being pins more: always those of a placement and the first of the others in
one fixed order, so that a growing cache only unpins and a shrinking one only pins.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from tpiedge.errors import OutOfMemory
from tpiedge.memory.residency import smallest_ring, streamed
from tpiedge.memory.sweep import Sweep
from tpiedge.units import format_bytes
from tpiedge.wire.fields import Pin
from tpiedge.wire.weights import WeightMemory


@dataclass(frozen=True)
class Placement:
    """Bytes of the ring, and the pieces (by their number in the sweep) that are pinned."""

    ring_bytes: int
    pinned: frozenset[int]

    def pinned_bytes(self, sizes: Sequence[int]) -> int:
        """`sizes`: the bytes of each piece."""
        return sum(sizes[piece] for piece in self.pinned)

    def nbytes(self, sizes: Sequence[int]) -> int:
        """Bytes of memory that the placement takes: ring and pinned pieces."""
        return self.ring_bytes + self.pinned_bytes(sizes)


@dataclass(frozen=True)
class TooSmall:
    """No placement fits; `smallest_bytes` is what the smallest one takes."""

    smallest_bytes: int


class SparePins:
    """Which pieces are pinned beyond `placement` while bytes are to spare. `sizes`: the bytes of each piece.

    Where all fit without the ring, all are pinned, and the ring is empty.
    """

    def __init__(self, sizes: Sequence[int], placement: Placement) -> None:
        self._order = in_turn([piece for piece in range(len(sizes)) if piece not in placement.pinned])
        self._sums = (0, *accumulate(sizes[piece] for piece in self._order))
        self._placed = placement

    def count(self, spare_bytes: int) -> int:
        """How many fit."""
        if 0 < spare_bytes >= self._sums[-1] - self._placed.ring_bytes:
            return len(self._order)
        return max(0, bisect_right(self._sums, spare_bytes) - 1)

    def placement(self, count: int) -> Placement:
        """The pieces pinned anyway and the first `count` others, and what the ring takes beside them."""
        everything = 0 < count == len(self._order)
        pinned = self._placed.pinned.union(self._order[:count])
        return Placement(0 if everything else self._placed.ring_bytes, pinned)


def in_turn(pieces: Sequence[int]) -> list[int]:
    """The pieces in an order of which every beginning is spread over the sweep: by their place in it, in bits, read
    backwards."""
    bits = max(1, (len(pieces) - 1).bit_length())
    places = sorted(range(len(pieces)), key=lambda place: int(f"{place:0{bits}b}"[::-1], 2))
    return [pieces[place] for place in places]


def place(
    blocks: Sequence[Sequence[int]], nbytes: int, mode: Pin = "auto", window_bytes: int | None = None
) -> Placement | TooSmall:
    """Divide `nbytes` into a ring and pinned pieces. `blocks`: the bytes of each piece of each block.

    The ring has room for the largest block twice, to read ahead while one computes, or for less where there is less;
    `window_bytes` sets it.
    """
    sizes = list(chain.from_iterable(blocks))
    everything = Placement(0, frozenset(range(len(sizes))))
    if mode == "all" or (mode == "auto" and sum(sizes) <= nbytes):
        return everything if sum(sizes) <= nbytes else TooSmall(sum(sizes))
    smallest = smallest_ring(blocks, frozenset())
    if max(smallest, window_bytes or 0) > nbytes:
        return TooSmall(max(smallest, window_bytes or 0))
    best = Placement(ring_bytes(blocks, frozenset(), window_bytes, nbytes), frozenset())
    while mode == "auto":
        # Every pin may make the largest block smaller, and the ring with it, which makes room for more.
        pinned = spread(sizes, nbytes - best.ring_bytes, sum(sizes))
        found = Placement(ring_bytes(blocks, pinned, window_bytes, nbytes), pinned)
        if found.nbytes(sizes) > nbytes or found.pinned_bytes(sizes) <= best.pinned_bytes(sizes):
            break
        best = found
    return best


def spread(sizes: Sequence[int], nbytes: int, total: int) -> frozenset[int]:
    """Pieces with at most the part `nbytes` / `total` of the bytes, of any stretch from the start on."""
    pinned, passed, held = [], 0, 0
    for number, size in enumerate(sizes):
        passed += size
        if (held + size) * total <= nbytes * passed:
            pinned.append(number)
            held += size
    return frozenset(pinned)


def ring_bytes(
    blocks: Sequence[Sequence[int]], pinned: frozenset[int], window_bytes: int | None, nbytes: int
) -> int:
    """The largest block twice, or less where `nbytes` are less, but at least what works; `window_bytes` sets it."""
    smallest = smallest_ring(blocks, pinned)
    if window_bytes is not None:
        return max(window_bytes, smallest)
    return max(smallest, min(nbytes, smallest + max(map(sum, streamed(blocks, pinned)), default=0)))


def placed(memory: WeightMemory, sweep: Sweep) -> Placement:
    """Raises OutOfMemory where the plan gave less than the smallest that works."""
    room = memory.nbytes or sweep.nbytes
    found = place(sweep.sizes, room, memory.pin, memory.ring_bytes or None)
    if isinstance(found, TooSmall):
        least = format_bytes(found.smallest_bytes)
        raise OutOfMemory(
            f"{format_bytes(room)} are too little for the weights: {least} is the least that works"
        )
    return found


def elastic_bytes(memory: WeightMemory, kv_bytes: int) -> int:
    """What the weights may use of a KV cache of `kv_bytes` while it is empty: nothing where nothing is to be pinned
    but what was planned."""
    return kv_bytes if memory.pin == "auto" else 0
