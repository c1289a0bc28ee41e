"""Which pieces are pinned within so many bytes: a pure function.

Pinned pieces are spread evenly over the sweep, so that what is streamed comes at an even rate too. With pieces of one
size and room for every T-th of them this is the paper's retention period T (TPI-LLM, equations 9 and 10).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

from tpiedge.memory.residency import smallest_ring

__all__ = ["PinMode", "Placement", "TooSmall", "place", "spread"]

PinMode: TypeAlias = Literal["none", "auto", "all"]


@dataclass(frozen=True)
class Placement:
    """Bytes of the ring, and the pieces (by their number in the sweep) that are pinned."""

    ring_bytes: int
    pinned: frozenset[int]


@dataclass(frozen=True)
class TooSmall:
    """No placement fits; `smallest_bytes` is what the smallest one takes."""

    smallest_bytes: int


def place(
    blocks: Sequence[Sequence[int]], nbytes: int, mode: PinMode = "auto", window_bytes: int | None = None
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
    best = Placement(_ring(blocks, frozenset(), window_bytes, nbytes), frozenset())
    while mode == "auto":
        # Every pin may make the largest block smaller, and the ring with it, which makes room for more.
        pinned = spread(sizes, nbytes - best.ring_bytes, sum(sizes))
        ring = _ring(blocks, pinned, window_bytes, nbytes)
        held = _total(sizes, pinned)
        if held + ring > nbytes or held <= _total(sizes, best.pinned):
            break
        best = Placement(ring, pinned)
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


def _ring(
    blocks: Sequence[Sequence[int]], pinned: frozenset[int], window_bytes: int | None, nbytes: int
) -> int:
    smallest = smallest_ring(blocks, pinned)
    if window_bytes is not None:
        return max(window_bytes, smallest)
    numbers = iter(range(sum(map(len, blocks))))
    streamed = [sum(size for size in sizes if next(numbers) not in pinned) for sizes in blocks]
    return max(smallest, min(nbytes, smallest + max(streamed, default=0)))


def _total(sizes: Sequence[int], pinned: frozenset[int]) -> int:
    return sum(sizes[number] for number in pinned)
