"""The sum of an all-reduce: begun before all parts are there, yet always in the order of ranks."""

from collections.abc import Iterable
from itertools import count
from math import isfinite

import numpy as np

from tpiedge.collectives.arrays import Array
from tpiedge.errors import Misconduct, ProtocolError

__all__ = ["OrderedSum", "is_finite"]


class OrderedSum:
    """((p0 + p1) + p2) + ..., where a part is added as soon as all parts before it have been.

    `own` is the part of `rank`; None where it has no share. No part is written to: the sum grows in `out`. Call within
    `np.errstate(over="ignore", invalid="ignore")`. `order`: the ranks whose parts there will be, `rank` among them;
    None: all.
    """

    def __init__(
        self, own: Array | None, out: Array, rank: int = 0, order: Iterable[int] | None = None
    ) -> None:
        self._out = out
        self._rank = rank
        self._sum: Array | None = None
        self._parts: dict[int, Array | None] = {}
        self._order = count() if order is None else iter(order)
        self._next = next(self._order, None)
        self.put(rank, own)

    @property
    def empty(self) -> bool:
        """Whether nobody so far has a share."""
        return self._sum is None

    def put(self, rank: int, part: Array | None) -> None:
        """The part of `rank`, None where it has no share. Each rank once, in any order."""
        parts = self._parts
        parts[rank] = part
        while self._next in parts:
            part = parts[self._next]
            self._next = next(self._order, None)
            if part is None:
                continue
            self._sum = part if self._sum is None else np.add(self._sum, part, self._out)

    def complete(self) -> None:
        """The sum is in `out`, zeros where nobody has a share."""
        if self._sum is None:
            self._out.fill(0)
        elif self._sum is not self._out:
            np.copyto(self._out, self._sum)

    def finish(self, what: object, *, convicts: bool = True) -> None:
        """As `complete`; Misconduct names who sent a value that is not finite; ProtocolError where all did, or
        nobody, or not `convicts`: where a part may be so by the fault of somebody who gave its sender less than he gave
        this rank."""
        self.complete()
        if not is_finite(self._out):
            raise self._blame(what) if convicts else self._doubt(what)

    def _doubt(self, what: object) -> ProtocolError:
        _, guilty = self._contributors()
        if not guilty:
            return ProtocolError(f"the sum of {what} overflows f32")
        names = " and ".join(f"node {rank}" for rank in guilty)
        return ProtocolError(
            f"the sum of {what} is not finite where node {self._rank} adds it up: {names} contributed a value that is "
            "not finite; run it with --collective star to learn which node is at fault"
        )

    def _contributors(self) -> tuple[list[int], list[int]]:
        """Who has a share, and whose is not finite."""
        given = {rank: part for rank, part in sorted(self._parts.items()) if part is not None}
        return list(given), [rank for rank, part in given.items() if not is_finite(part)]

    def _blame(self, what: object) -> ProtocolError:
        given, guilty = self._contributors()
        if not guilty:
            return ProtocolError(f"the sum of {what} overflows f32")
        if guilty[0] == 0 and len(guilty) == len(given) > 1:
            # Rank 0 is trusted: what it computed from had such values already.
            return ProtocolError(f"every node contributed a value that is not finite to {what}")
        return Misconduct(guilty[0], f"node {guilty[0]} contributed a value that is not finite to {what}")


def is_finite(array: Array) -> bool:
    """A sum is cheaper than a test of every element; where it overflows the elements decide."""
    return isfinite(np.add.reduce(array, None)) or bool(np.isfinite(array).all())
