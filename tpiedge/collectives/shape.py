"""Which rank sends to which in an all-reduce. Pure.

The tree has depth 2: rank 0, its children (the heads), and theirs. The ranks above 0 are cut into about as many runs as
a run has ranks; the first rank of a run is its head, and the rest are the head's children. So the sum is in the order
of ranks too, but with other brackets than the star's: p0 + (p1 + p2) + (p3 + p4).
"""

from collections.abc import Iterator, Sequence
from math import isqrt
from typing import NamedTuple

from tpiedge.errors import InternalError
from tpiedge.wire.fields import CollectiveName


class Hop(NamedTuple):
    """A message; `part`: of the tensor."""

    source: int
    target: int
    part: float = 1.0


def phases(collective: CollectiveName, size: int) -> Iterator[Sequence[Hop]]:
    """All messages of an all-reduce among `size` ranks. A rank sends those of a phase once it has those that the phases
    before it bring."""
    others = range(1, size)
    if collective == "star":
        yield [Hop(rank, 0) for rank in others]
        yield [Hop(0, rank) for rank in others]
    elif collective == "mesh":
        yield _all_to_all(size)
    elif collective == "two-shot":
        yield _all_to_all(size, 1 / size)
        yield _all_to_all(size, 1 / size)
    elif collective == "tree":
        yield from _tree(size)
    else:
        for _ in range(2 * len(others)):
            yield [Hop(rank, (rank + 1) % size, 1 / size) for rank in range(size)]


def _all_to_all(size: int, part: float = 1.0) -> list[Hop]:
    return [Hop(a, b, part) for a in range(size) for b in range(size) if a != b]


def _tree(size: int) -> Iterator[list[Hop]]:
    heads = tree_children(0, size)
    leaves = [(head, leaf) for head in heads for leaf in tree_children(head, size)]
    yield [Hop(leaf, head) for head, leaf in leaves]
    yield [Hop(head, 0) for head in heads]
    yield [Hop(0, head) for head in heads]
    yield [Hop(head, leaf) for head, leaf in leaves]


def tree_parent(rank: int, size: int) -> int | None:
    """The rank to which `rank` of `size` ranks sends its sum; None for rank 0."""
    _check(rank, size)
    if rank == 0:
        return None
    head = max(head for head in _heads(size) if head <= rank)
    return 0 if head == rank else head


def tree_children(rank: int, size: int) -> tuple[int, ...]:
    """Whose sums `rank` of `size` ranks adds to its own part, in this order, which is ascending."""
    _check(rank, size)
    heads = _heads(size)
    if rank == 0:
        return heads
    if rank not in heads:
        return ()
    return tuple(range(rank + 1, min((head for head in heads if head > rank), default=size)))


def _heads(size: int) -> tuple[int, ...]:
    others = size - 1
    runs = isqrt(others)
    return tuple(1 + run * others // runs for run in range(runs))


def _check(rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise InternalError(f"there is no rank {rank} among {size} ranks")
