"""Cuts a model into shares by the nodes' capacities. Pure.

Without all-reduces, a step takes max_i(fraction_i * bytes of all layers / speed_i) + head_bytes / head_speed_0 seconds.
Rank 0 computes the LM head after the last all-reduce, so the LM head's time does not change the shares.

Attention and FFN are cut independently (TPI-LLM, section 3.1). Attention is cut at the KV heads of the layer that has
fewest. If more nodes than these take part, it is cut at query heads, with replicated KV heads.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeAlias

from tpiedge.errors import UserError
from tpiedge.pack.share import Axis, NodeShare, Share
from tpiedge.planner.fractions import fractions, least_sweep_s, node_bound, shortage
from tpiedge.planner.needs import (
    Infeasible,
    LayerShape,
    ModelFacts,
    NodeFacts,
    NodeNeed,
    head_seconds,
    node_need,
    node_seconds,
)
from tpiedge.units import counted

_CLOSE = 1.05  # times what fractions of units would take
_SLACKS = (1.1, 1.6)
_SecondsOf: TypeAlias = Callable[[int, NodeShare], float]  # of a rank's layers; infinite without room
_HasRoom: TypeAlias = Callable[[int, NodeShare], bool]  # whether a rank's node has room for a share


@dataclass(frozen=True)
class Plan:
    """Shares in rank order. `layers_s`, `head_s` and `reduce_s` (all-reduces) are seconds if speeds are in bytes per
    second."""

    shares: tuple[NodeShare, ...]
    needs: tuple[NodeNeed, ...]
    layers_s: float
    head_s: float
    reduce_s: float = 0.0

    @property
    def step_s(self) -> float:
        return self.layers_s + self.head_s + self.reduce_s


@dataclass(frozen=True)
class ShareWeight:
    """A node's relative weights, in any scale."""

    attention: float
    ffn: float


def apportion(weights: Sequence[float], units: int) -> list[int]:
    """Divides units in proportion to weights by largest remainder. The lower index wins a tie. Weights must be
    finite, not negative and not all zero. A weight of zero gets no units."""
    total = math.fsum(weights)
    quotas = [weight / total * units for weight in weights]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(
        (index for index, weight in enumerate(weights) if weight > 0),
        key=lambda index: (counts[index] - quotas[index], index),
    )
    missing = units - sum(counts)
    for index in by_remainder[:missing]:
        counts[index] += 1
    return counts


def apportion_within(
    weights: Sequence[float], units: int, most: Callable[[int, int], int]
) -> list[int] | None:
    """Divides as `apportion` does, but within limits: `most(index, units)` returns how many of `units` node `index` can
    take. Returns None if units are left."""
    full: dict[int, int] = {}
    while True:
        free = [0.0 if index in full else weight for index, weight in enumerate(weights)]
        if not any(free):
            return None
        counts = apportion(free, units - sum(full.values()))
        fit = {index: most(index, count) for index, count in enumerate(counts) if count}
        if all(count == counts[index] for index, count in fit.items()):
            return [full.get(index, count) for index, count in enumerate(counts)]
        full |= {index: count for index, count in fit.items() if count < counts[index]}


def partition(shape: LayerShape, weights: Sequence[ShareWeight]) -> tuple[NodeShare, ...]:
    """Returns shares, in rank order, that cover every unit once."""
    attention = [weight.attention for weight in weights]
    cut = heads_per_cut(shape, attention)
    counts = [cut * cuts for cuts in apportion(attention, shape.heads // cut)]
    ffn, experts = (
        apportion([weight.ffn for weight in weights], tiles) for tiles in (shape.ffn_tiles, shape.experts)
    )
    return tuple(map(shape.share, intervals(counts), intervals(ffn), intervals(experts)))


def heads_per_cut(shape: LayerShape, weights: Sequence[float]) -> int:
    """Returns how many query heads lie between possible cuts."""
    takers = sum(weight > 0 for weight in weights)
    return 1 if takers > shape.kv_heads else shape.group_size


def intervals(counts: Sequence[int]) -> list[Share]:
    stops = [sum(counts[: index + 1]) for index in range(len(counts))]
    return [Share(stop - count, stop) for count, stop in zip(counts, stops, strict=True)]


def parse_shares(text: str, nodes: int) -> tuple[ShareWeight, ...]:
    """Parses weights like '3,1,2'; a weight 'a:f' is for attention and FFN. Raises UserError."""
    items = text.split(",")
    if len(items) != nodes:
        given, wanted = counted(len(items), "weight"), counted(nodes, "node")
        raise UserError(f"--shares {text!r} gives {given} for {wanted}: give one per node")
    weights = tuple(_parse_weight(item, text) for item in items)
    for part, values in (("attention", [w.attention for w in weights]), ("FFN", [w.ffn for w in weights])):
        if not any(values):
            raise UserError(
                f"--shares {text!r} leaves the {part} to nobody: at least one weight must be above 0"
            )
    return weights


def _parse_weight(item: str, text: str) -> ShareWeight:
    parts = item.split(":")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2:
        raise UserError(
            f"--shares {text!r}: {item.strip()!r} is not a weight; write numbers like 3,1,2 or 1,0:2"
        )
    if any(not math.isfinite(number) or number < 0 or number > 1e9 for number in numbers):
        raise UserError(f"--shares {text!r}: {item.strip()!r} is out of range; weights are from 0 to 1e9")
    return ShareWeight(numbers[0], numbers[-1])


def evaluate(
    model: ModelFacts, nodes: Sequence[NodeFacts], weights: Sequence[ShareWeight]
) -> Plan | Infeasible:
    return _check(model, nodes, partition(model.shape, weights))


def _check(model: ModelFacts, nodes: Sequence[NodeFacts], shares: tuple[NodeShare, ...]) -> Plan | Infeasible:
    found = [
        node_need(model, rank, share, node)
        for rank, (node, share) in enumerate(zip(nodes, shares, strict=True))
    ]
    refusals = [need.reason for need in found if isinstance(need, Infeasible)]
    if refusals:
        return Infeasible("; ".join(refusals))
    needs = tuple(need for need in found if isinstance(need, NodeNeed))
    seconds = map(partial(node_seconds, model), shares, nodes, needs)
    return Plan(shares, needs, max(seconds), head_seconds(model, nodes[0]))


def solve(model: ModelFacts, nodes: Sequence[NodeFacts]) -> Plan | Infeasible:
    """Finds the shares with which the slowest node takes the least time. Every share fits memory and disk."""
    bounds = [node_bound(model, rank, node) for rank, node in enumerate(nodes)]
    streaming = fractions(bounds)
    if streaming is None:
        if all(node.streams for node in nodes):  # the refusal names the least memory
            return evaluate(model, nodes, [ShareWeight(1, 1)] * len(nodes))
        return shortage(model, nodes, bounds)
    in_memory: list[Plan | Infeasible] = []  # where nothing streams, if that is possible
    held = fractions([bound.in_memory for bound in bounds])
    if held is not None and all(node.keeping.pin != "none" for node in nodes):
        without_disk = [replace(node, disk_bytes_per_s=None) for node in nodes]
        in_memory = _of_fractions(model, without_disk, held[0], math.inf)
    found = _fastest(in_memory)
    if found is not None and found.layers_s <= _CLOSE * least_sweep_s(bounds):
        return found
    plans = [*in_memory, *_of_fractions(model, nodes, *streaming)]
    return _fastest(plans) or plans[-1]


def _fastest(plans: Sequence[Plan | Infeasible]) -> Plan | None:
    found = [plan for plan in plans if isinstance(plan, Plan)]
    return min(found, key=lambda plan: plan.layers_s, default=None)


def _of_fractions(
    model: ModelFacts, nodes: Sequence[NodeFacts], parts: Sequence[float], seconds: float
) -> list[Plan | Infeasible]:
    """Makes plans with whole units. The last plan has `parts` rounded to units."""
    rounded = evaluate(model, nodes, [ShareWeight(part, part) for part in parts])
    if isinstance(rounded, Plan) and rounded.layers_s <= _CLOSE * seconds:
        return [rounded]
    # One head too many may make a node read too much: try units that need hardly more than `seconds`.
    seconds_of = _timed(model, nodes)
    for slack in (1.0,) if seconds == math.inf else (*_SLACKS, math.inf):
        shares = _fit_whole_units(model.shape, parts, slack * seconds, seconds_of)
        if shares is not None:
            return [_check(model, nodes, shares), rounded]
    return [rounded]


def _timed(model: ModelFacts, nodes: Sequence[NodeFacts]) -> _SecondsOf:
    @cache
    def seconds_of(rank: int, share: NodeShare) -> float:
        need = node_need(model, rank, share, nodes[rank])
        return node_seconds(model, share, nodes[rank], need) if isinstance(need, NodeNeed) else math.inf

    return seconds_of


def _fit_whole_units(
    shape: LayerShape, parts: Sequence[float], limit_s: float, seconds_of: _SecondsOf
) -> tuple[NodeShare, ...] | None:
    """Cuts attention, then the FFN, so that every share fits its node and `limit_s`."""

    def has_room(rank: int, share: NodeShare) -> bool:
        return math.inf > seconds_of(rank, share) <= limit_s

    # Nodes drop out one after the other. A time limit is only a wish, so it is tried with all nodes alone.
    leasts = sorted(part for part in set(parts) if part > 0)
    for least in leasts if limit_s == math.inf else leasts[:1]:
        attention = _fit_attention(shape, [part if part >= least else 0 for part in parts], has_room)
        if attention is None:
            continue
        own = tuple(shape.share(heads, Share(0)) for heads in attention)
        own = _fit_tiles("experts", shape.experts, parts, own, has_room)
        own = _fit_tiles("ffn", shape.ffn_tiles, parts, own, has_room)
        if own:
            return own
    return None


def _fit_attention(shape: LayerShape, weights: Sequence[float], has_room: _HasRoom) -> list[Share] | None:
    cut = heads_per_cut(shape, weights)

    def fits(rank: int, count: int) -> bool:
        # Heads from the last of a group on cover the most KV heads: wherever the cuts fall, no more is needed.
        start = min(shape.group_size - cut, shape.heads - count * cut)
        return has_room(rank, shape.share(Share(start, start + count * cut), Share(0)))

    counts = apportion_within(weights, shape.heads // cut, partial(_most, fits))
    return None if counts is None else intervals([cut * count for count in counts])


def _fit_tiles(
    axis: Axis, tiles: int, weights: Sequence[float], shares: Sequence[NodeShare], has_room: _HasRoom
) -> tuple[NodeShare, ...]:
    """Adds tiles of one axis to shares that have none. Returns () if they do not fit."""
    if not (tiles and shares):
        return tuple(shares)
    last = max(rank for rank, weight in enumerate(weights) if weight > 0)

    def extended(rank: int, own: Share) -> NodeShare:
        return replace(shares[rank], axes={**shares[rank].axes, axis: own})

    def fits(rank: int, count: int) -> bool:
        start = tiles - count if rank == last else 0  # the last tile may be a short one
        return has_room(rank, extended(rank, Share(start, start + count)))

    counts = apportion_within(weights, tiles, partial(_most, fits))
    return () if counts is None else tuple(map(extended, range(len(shares)), intervals(counts)))


def _most(fits: Callable[[int, int], bool], rank: int, units: int) -> int:
    if fits(rank, units):
        return units
    return max(0, bisect_left(range(units), True, key=lambda count: not fits(rank, count)) - 1)
