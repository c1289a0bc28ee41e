"""Where in a layer the machines of a plan have their intervals, so that their disks lack the fewest bytes. Pure.

How many units each machine gets is the plan's. Where they lie follows from the order of ranks, which costs next to no
time: the order is free but for rank 0, whose machine has the whole pack and takes the first units. Of the best order
the borders are moved then (`borders`), which makes no step longer.

Laws:
1. No machine takes longer than _SLACK times as long as the slowest does in the plan's own order, nor more memory or
   disk than it offers: KV heads that are replicated, and a short last tile, make some places dearer.
2. No order is found that lacks more than the plan's own, or than any that is given to try.
3. Of orders that lack equally much, the first that was given is found: what is there stays where it is.
4. With moved borders no step is longer than in the plan's own order or the one found, and no more is lacking.

Of few machines all orders are looked at. The search of more takes one machine out and puts it in where the fewest bytes
are lacking, as long as that helps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, cycle, islice, permutations
from math import inf
from typing import Final, TypeAlias

from tpiedge.pack.held import HeldUnits
from tpiedge.pack.share import NodeShare, Share
from tpiedge.planner.borders import moved_borders
from tpiedge.planner.needs import ModelFacts, NodeFacts, NodeNeed
from tpiedge.planner.streaming import node_need, node_seconds

_SLACK: Final = 1.05
#: So many machines have 120 orders, which are looked at within milliseconds.
_FEW: Final = 6
#: How many machines are taken out and put in again: others wait for the master.
_MOVES: Final = 64
#: What a place lacks that would break law 1: more than all places that do not.
_NEVER: Final = 1 << 80

_Ranks: TypeAlias = tuple[int, ...]
_Start: TypeAlias = tuple[int, int]
"""The first query head and the first FFN tile."""


@dataclass(frozen=True)
class Part:
    """One machine of a plan: what it can do, its share in the plan's own order, and what is on its disk."""

    node: NodeFacts
    share: NodeShare
    held: HeldUnits = field(default_factory=HeldUnits)


class Arrangement:
    """The orders of one plan. An order lists the ranks that machines have in the plan's own order, 0 first."""

    def __init__(
        self, model: ModelFacts, capacity_tokens: int, parts: Sequence[Part], *, movable: bool = True
    ) -> None:
        """`parts`: by rank in the plan's own order, in which they are feasible. `movable`: whether borders may be
        moved, so that machines get other amounts."""
        self._model = model
        self._capacity_tokens = capacity_tokens
        self._parts = parts
        self._movable = movable
        self._sizes = [(len(part.share.attention), len(part.share.ffn)) for part in parts]
        held = [part.held.within(model.shape.heads, model.shape.ffn_tiles) for part in parts]
        self._held = [(one.attention, one.kv_heads(model.shape.group_size), one.ffn) for one in held]
        self._middles = [one.middle for one in held]
        self._limit_s = _SLACK * self.seconds(self.own)
        #: Whether a rank fits where it has so many KV heads, and the last tile or not.
        self._fitting: dict[tuple[int, int, bool], bool] = {}

    @property
    def own(self) -> _Ranks:
        """The plan's own order."""
        return tuple(range(len(self._parts)))

    def shares(self, order: Sequence[int]) -> list[NodeShare]:
        """The machines' shares in that order."""
        return [
            NodeShare(Share(head, head + self._sizes[rank][0]), Share(tile, tile + self._sizes[rank][1]))
            for rank, (head, tile) in zip(order, self._starts(order), strict=False)
        ]

    def moved(self, order: Sequence[int]) -> list[NodeShare]:
        """The machines' shares in that order with the borders at which the fewest bytes are lacking (law 4)."""
        if not self._movable:
            return self.shares(order)
        limit_s = max(self.seconds(self.own), self.seconds(order))
        everything = HeldUnits((1 << self._model.shape.heads) - 1, (1 << self._model.shape.ffn_tiles) - 1)
        held = [self._parts[rank].held if rank else everything for rank in order]

        def fits(place: int, share: NodeShare) -> bool:
            return self._seconds(order[place], share) <= limit_s

        return moved_borders(self._model, self.shares(order), held, fits)

    def needs(self, order: Sequence[int], shares: Sequence[NodeShare] | None = None) -> list[NodeNeed] | None:
        """What the machines need in that order, with its shares or the given ones; None where that breaks law 1."""
        given = self.shares(order) if shares is None else shares
        found = [self._need(rank, share) for rank, share in zip(order, given, strict=True)]
        needs = [need for need in found if need is not None]
        return needs if len(needs) == len(found) and self.seconds(order, given) <= self._limit_s else None

    def seconds(self, order: Sequence[int], shares: Sequence[NodeShare] | None = None) -> float:
        """How long the slowest machine takes for its layers; infinite where one does not fit. `shares` as in `needs`,
        here and below."""
        given = self.shares(order) if shares is None else shares
        return max(self._seconds(rank, share) for rank, share in zip(order, given, strict=True))

    def lacks(self, order: Sequence[int], shares: Sequence[NodeShare] | None = None) -> list[int]:
        """Bytes of weights that each machine's disk lacks in that order; more than there are where a place in an order
        breaks law 1."""
        if shares is None:
            return [
                self._lacks(rank, *start) for rank, start in zip(order, self._starts(order), strict=False)
            ]
        return [
            self._lacking_bytes(
                rank, share.attention.start, len(share.attention), share.ffn.start, len(share.ffn)
            )
            for rank, share in zip(order, shares, strict=True)
        ]

    def lacking(self, order: Sequence[int], shares: Sequence[NodeShare] | None = None) -> int:
        """The bytes that all disks together lack."""
        return sum(self.lacks(order, shares))

    def nearest(self, tried: Sequence[Sequence[int]] = ()) -> _Ranks:
        """The order in which the fewest bytes are lacking, as far as the search finds it. `tried`: orders to begin
        with, those that are liked best first; ranks that they lack are put in."""
        starts = dict.fromkeys([*map(self._completed, tried), self.own, self._completed(self._by_place())])
        if len(self.own) <= _FEW:
            return min((*starts, *((0, *rest) for rest in permutations(self.own[1:]))), key=self.lacking)
        return min((self._improved(start) for start in starts), key=lambda found: found[0])[1]

    def _improved(self, start: _Ranks) -> tuple[int, _Ranks]:
        """(bytes that are lacking, order) of the best order that is reached from `start`."""
        least, order, in_vain = self.lacking(start), start, 0
        for rank in islice(cycle(start[1:]), _MOVES):
            if not least or in_vain == len(start) - 1:
                break
            lacking, other = self._put_in([one for one in order if one != rank], rank)
            in_vain += 1
            if lacking < least:
                least, order, in_vain = lacking, other, 0
        return least, order

    def _by_place(self) -> _Ranks:
        """Those that hold anything, by where that lies."""
        middles = zip(self._middles[1:], self.own[1:], strict=True)
        return 0, *(
            rank for _, rank in sorted((middle, rank) for middle, rank in middles if middle is not None)
        )

    def _completed(self, order: Sequence[int]) -> _Ranks:
        """With the ranks that it lacks, each at its best place."""
        found = tuple(order)
        for rank in self.own:
            if rank not in found:
                found = self._put_in(found, rank)[1]
        return found

    def _put_in(self, order: Sequence[int], rank: int) -> tuple[int, _Ranks]:
        """(bytes that are lacking, order) with `rank` at its best place, of equally good ones the last. Whoever comes
        behind it gives way."""
        heads, tiles = self._sizes[rank]
        starts = self._starts(order)
        stays = [self._lacks(one, *start) for one, start in zip(order, starts, strict=False)]
        gives_way = [
            self._lacks(one, head + heads, tile + tiles)
            for one, (head, tile) in zip(order, starts, strict=False)
        ]
        before, behind, found = 0, sum(gives_way), []
        for index in range(1, len(starts)):
            before, behind = before + stays[index - 1], behind - gives_way[index - 1]
            found.append((before + self._lacks(rank, *starts[index]) + behind, index))
        lacking, index = min(found, key=lambda one: (one[0], -one[1]))
        return lacking, (*order[:index], rank, *order[index:])

    def _starts(self, order: Sequence[int]) -> list[_Start]:
        """Where each machine's units begin, and where the last one's end."""
        sizes = [self._sizes[rank] for rank in order]
        heads = accumulate((heads for heads, _ in sizes), initial=0)
        tiles = accumulate((tiles for _, tiles in sizes), initial=0)
        return list(zip(heads, tiles, strict=True))

    def _lacks(self, rank: int, head: int, tile: int) -> int:
        """Bytes that `rank` lacks where its units begin there. Without objects: it is asked thousands of times."""
        if rank == 0:
            return 0
        heads, tiles = self._sizes[rank]
        group, last = self._model.shape.group_size, self._model.shape.ffn_tiles
        kv_heads = -(-(head + heads) // group) - head // group if heads else 0
        place = rank, kv_heads, 0 < tiles == last - tile
        if place not in self._fitting:
            share = NodeShare(Share(head, head + heads), Share(tile, tile + tiles))
            self._fitting[place] = self._seconds(rank, share) <= self._limit_s
        return self._lacking_bytes(rank, head, heads, tile, tiles) if self._fitting[place] else _NEVER

    def _lacking_bytes(self, rank: int, head: int, heads: int, tile: int, tiles: int) -> int:
        """Of so many heads and tiles from there on, whether they fit or not."""
        if rank == 0:
            return 0
        model = self._model
        first_kv = head // model.shape.group_size
        kv_heads = -(-(head + heads) // model.shape.group_size) - first_kv if heads else 0
        held_heads, held_kv_heads, held_tiles = self._held[rank]
        lacking_tiles = (((1 << tiles) - 1) << tile) & ~held_tiles
        lacks_last = lacking_tiles >> model.shape.ffn_tiles - 1
        return model.num_layers * (
            ((((1 << heads) - 1) << head) & ~held_heads).bit_count() * sum(model.query_unit_bytes)
            + ((((1 << kv_heads) - 1) << first_kv) & ~held_kv_heads).bit_count() * sum(model.kv_unit_bytes)
            + (lacking_tiles.bit_count() - lacks_last) * sum(model.ffn_tile_bytes)
            + lacks_last * sum(model.last_tile_bytes)
        )

    def _seconds(self, rank: int, share: NodeShare) -> float:
        need, node = self._need(rank, share), self._parts[rank].node
        return inf if need is None else node_seconds(self._model, share, node, need)

    def _need(self, rank: int, share: NodeShare) -> NodeNeed | None:
        need = node_need(self._model, rank, share, self._parts[rank].node, self._capacity_tokens)
        return need if isinstance(need, NodeNeed) else None
