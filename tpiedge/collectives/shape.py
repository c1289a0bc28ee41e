"""Which rank sends to which in an all-reduce. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tpiedge.wire.fields import CollectiveName


class Hop(NamedTuple):
    """A message; `part`: of the tensor."""

    source: int
    target: int
    part: float = 1.0


def phases(collective: CollectiveName, size: int) -> Iterator[Sequence[Hop]]:
    """All messages of an all-reduce among `size` ranks. A rank sends those of a phase once it has those that the phases
    before it bring."""
    if collective == "star":
        yield [Hop(rank, 0) for rank in range(1, size)]
        yield [Hop(0, rank) for rank in range(1, size)]
        return
    times, part = (1, 1.0) if collective == "mesh" else (2, 1 / size)
    for _ in range(times):
        yield [Hop(a, b, part) for a in range(size) for b in range(size) if a != b]
