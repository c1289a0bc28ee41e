"""Moves the borders between neighbours of a plan so that their disks lack the fewest bytes. Pure.

The order of ranks is given, and so is who has heads and who has tiles. Units are whole, so of a plan's machines only
the slowest uses all of its time: others may take a unit more without making a step longer, and there are many plans as
fast as the planner's.

Laws:
1. Every unit belongs to one machine, and no machine has a share that does not fit, as the caller says.
2. Whoever has heads keeps some, as with tiles, and whoever has none gets none. Where all borders are those of KV heads,
   they stay such.
3. No less is lacking with any other borders of which those between heads are moved by _AROUND cuts at most.
4. Of borders with which equally much is lacking, those found are the nearest to the plan's.
5. Where there are too many to look at, they stay as they are.

The search goes from rank to rank (dynamic programming): of all ways to a border the best one is kept.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

from tpiedge.pack.held import HeldUnits
from tpiedge.pack.share import NodeShare, Share, kv_share
from tpiedge.planner.needs import ModelFacts

#: By how many cuts of attention a border is moved at most; one of tiles may go anywhere.
_AROUND: Final = 2
#: So many steps the search may take, each of less than a microsecond on a fast computer: others wait for the master.
_MOST_STEPS: Final = 200_000
#: A byte that is lacking counts for more than all units by which borders are moved.
_BYTE: Final = 1 << 32

_Passage: TypeAlias = tuple[int, tuple[int, int]]
"""The cost of the best way to a border (the bytes lacking before it times _BYTE, and the units by which borders were
moved), and the border before it."""
_Reached: TypeAlias = dict[int, dict[int, _Passage]]
"""The best way to each border, by its head and its tile."""


def moved_borders(
    model: ModelFacts,
    shares: Sequence[NodeShare],
    held: Sequence[HeldUnits],
    fits: Callable[[int, NodeShare], bool],
) -> list[NodeShare]:
    """`shares`, which fit, with the best borders; `held`: what is on the disks. Both are in the order of ranks.

    `fits(rank, share)`: whether the machine has the memory, the disk and the time. Where it does with some tiles, it
    does with fewer.
    """
    found = _Search(model, shares, held, fits).best()
    # Streaming is not quite even: a ring may take more with fewer tiles.
    return found if all(fits(rank, share) for rank, share in enumerate(found)) else list(shares)


class _Search:
    """One search, from border to border. Attention and FFN are moved together: what one of them costs a machine of its
    time the other has to do without."""

    def __init__(
        self,
        model: ModelFacts,
        shares: Sequence[NodeShare],
        held: Sequence[HeldUnits],
        fits: Callable[[int, NodeShare], bool],
    ) -> None:
        self._model = model
        self._shares = shares
        self._fits = fits
        self._held = [(one.attention, one.kv_heads(model.shape.group_size)) for one in held]
        #: By rank and tile, the bytes of one layer that are lacking of the tiles before it.
        self._lacking_tiles = [self._tile_sums(one) for one in held]
        group = model.shape.group_size
        whole = all(share.attention.start % group == 0 for share in shares)
        self._cut = group if whole else 1
        #: The most tiles by rank, KV heads, query heads, and whether the last tile is among them.
        self._caps: dict[tuple[int, int, int, bool], int] = {}
        self._steps = 0

    def best(self) -> list[NodeShare]:
        shape = self._model.shape
        found: list[_Reached] = [{0: {0: (0, (0, 0))}}]
        for rank, (low, high) in enumerate(self._tile_ranges()):
            found.append(self._next(rank, found[-1], low, high))
            if self._steps > _MOST_STEPS:
                return list(self._shares)
        border, borders = (shape.heads, shape.ffn_tiles), []
        for ways in reversed(found):
            borders.append(border)
            border = ways[border[0]][border[1]][1]
        borders.reverse()
        return [
            NodeShare(Share(head, next_head), Share(tile, next_tile))
            for (head, tile), (next_head, next_tile) in pairwise(borders)
        ]

    def _next(self, rank: int, ways: _Reached, low: int, high: int) -> _Reached:
        """The best ways to the border behind `rank`, which lies at the tiles from `low` to `high`."""
        found: _Reached = {}
        for head, by_tile in ways.items():
            row = sorted(by_tile.items())
            for stop in self._stops(rank):
                if stop > head if self._shares[rank].attention else stop == head:
                    self._through(
                        rank, Share(head, stop), row, range(low, high + 1), found.setdefault(stop, {})
                    )
        return found

    def _through(
        self,
        rank: int,
        heads: Share,
        row: Sequence[tuple[int, _Passage]],
        stops: range,
        found: dict[int, _Passage],
    ) -> None:
        """Puts into `found` the ways through `rank` with these heads that are better than those there.

        `row` has its ways by rising tiles; the best start for each stop is the least of a window that moves with it.
        """
        self._steps += len(stops)
        own, lacking = self._shares[rank], self._lacking_tiles[rank]
        least, cap = min(len(own.ffn), 1), self._cap(rank, heads, last=False)
        moved = abs(heads.stop - own.attention.stop) + self._lacking_heads(rank, heads) * _BYTE
        window: deque[tuple[int, int]] = deque()
        coming = 0
        for stop in stops:
            while coming < len(row) and row[coming][0] <= stop - least:
                start, (cost, _) = row[coming]
                cost -= lacking[start] * _BYTE
                while window and window[-1][0] > cost:
                    window.pop()
                window.append((cost, start))
                coming += 1
            if stop == self._model.shape.ffn_tiles:
                cap = self._cap(rank, heads, last=True)
            while window and window[0][1] < stop - cap:
                window.popleft()
            if window:
                cost = window[0][0] + lacking[stop] * _BYTE + moved + abs(stop - own.ffn.stop)
                if stop not in found or cost < found[stop][0]:
                    found[stop] = cost, (heads.start, window[0][1])

    def _stops(self, rank: int) -> list[int]:
        """Where the heads of `rank` may end."""
        heads, own = self._model.shape.heads, self._shares[rank].attention.stop
        if rank == len(self._shares) - 1:
            return [heads]
        moved = (own + self._cut * cuts for cuts in range(-_AROUND, _AROUND + 1))
        return [stop for stop in moved if 0 <= stop <= heads]

    def _tile_ranges(self) -> list[tuple[int, int]]:
        """Between which tiles the border behind each rank lies, so that all tiles have room on both sides of it."""
        tiles = self._model.shape.ffn_tiles
        ranks = range(len(self._shares))
        most = [max(0, self._cap(rank, self._fewest_heads(rank), last=False)) for rank in ranks]
        # The last tile may be a short one, which has room where a whole one has none.
        before = [min(tiles, total + 1) for total in accumulate(most)]
        behind = [min(tiles, total + 1) for total in accumulate(reversed(most), initial=0)][-2::-1]
        ranges = [(tiles - least, high) for high, least in zip(before, behind, strict=True)]
        return [*ranges[:-1], (tiles, tiles)]

    def _fewest_heads(self, rank: int) -> Share:
        own = self._shares[rank].attention
        return Share(0, max(len(own) - 2 * _AROUND * self._cut, min(len(own), self._cut)))

    def _cap(self, rank: int, heads: Share, *, last: bool) -> int:
        """The most tiles that fit on the machine with these heads, with the `last` tile of all or without it; -1 where
        the heads alone do not."""
        own, tiles = self._shares[rank].ffn, self._model.shape.ffn_tiles
        kv_heads = len(kv_share(heads, self._model.shape.group_size))
        key = rank, kv_heads, len(heads), last
        if key not in self._caps:
            low, high = -1, tiles if own else 0
            while low < high:
                middle = (low + high + 1) // 2
                start = tiles - middle if last else 0
                fits = self._fits(rank, NodeShare(heads, Share(start, start + middle)))
                low, high = (middle, high) if fits else (low, middle - 1)
            self._caps[key] = low
        return self._caps[key]

    def _tile_sums(self, held: HeldUnits) -> list[int]:
        tile, last = sum(self._model.ffn_tile_bytes), sum(self._model.last_tile_bytes)
        sizes = [tile] * (self._model.shape.ffn_tiles - 1) + [last]
        lacking = (0 if held.ffn >> index & 1 else size for index, size in enumerate(sizes))
        return list(accumulate(lacking, initial=0))

    def _lacking_heads(self, rank: int, heads: Share) -> int:
        """Bytes of one layer."""
        held, held_kv = self._held[rank]
        kv_heads = kv_share(heads, self._model.shape.group_size)
        return _missing(heads, held) * sum(self._model.query_unit_bytes) + _missing(kv_heads, held_kv) * sum(
            self._model.kv_unit_bytes
        )


def _missing(units: Share, held: int) -> int:
    """How many of the units are not among the bits of `held`."""
    return (((1 << len(units)) - 1) << units.start & ~held).bit_count()
