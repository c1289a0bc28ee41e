"""Divides every layer among nodes so that the slowest node takes the least time. Pure.

A node with a fraction f of W bytes computes for f W / speed seconds; of experts, only a token's count for it.
Meanwhile the node reads the weights beyond its pinned bytes for (f W - pinned) / disk rate seconds (TPI-LLM, section
3.3). Rates are in bytes per second.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpiedge.memory.residency import smallest_ring
from tpiedge.planner.needs import (
    Infeasible,
    ModelFacts,
    NodeFacts,
    base_bytes,
    expert_bytes,
    used_bytes,
)
from tpiedge.units import format_bytes, format_least

_ALL = 1 - 1e-12  # of a layer: sums are rounded
_FOREVER_S = 1e30  # of a node without any speed


def pinned_limit(model: ModelFacts, rank: int, node: NodeFacts) -> float:
    """Returns the largest part of every layer that the node can hold without streaming (1.0: whole layers)."""
    weights, kv_cache = model.whole_bytes
    limit = _disk_limit(model, rank, node, weights)
    if node.memory_bytes is not None:
        limit = min(limit, (_room(model, rank, node) - _head(model, rank)) / (weights + kv_cache))
    return limit


@dataclass(frozen=True, slots=True)
class Bound:
    """A node's limits, as parts of every layer. In a sweep of s seconds, the node can compute the part s *
    `computed_per_s` + `computed_at_once`. If it streams, it can take the part s * `read_per_s` + `read_at_once`."""

    limit: float  # the largest part that the node takes
    pinned: float  # the largest part without streaming
    computed_per_s: float
    read_per_s: float = 0.0
    read_at_once: float = 0.0
    computed_at_once: float = 0.0  # less than 0: what the node computes of replicated matrices meanwhile

    def at(self, seconds: float) -> float:
        read = max(self.pinned, seconds * self.read_per_s + self.read_at_once)
        computed = seconds * self.computed_per_s + self.computed_at_once
        return max(0.0, min(self.limit, computed, read))

    @property
    def least_s(self) -> float:
        """The least seconds of a sweep for a node without layers: 0 unless it streams the LM head."""
        if self.pinned >= 0 or not self.read_per_s:
            return 0.0
        return max(0.0, -self.read_at_once / self.read_per_s)

    @property
    def turns(self) -> list[float]:
        (computed, before), read = (self.computed_per_s, self.computed_at_once), self.read_per_s
        at_once, levels = self.read_at_once, (0.0, self.limit, self.pinned)
        found = [(level - before) / computed for level in levels] if computed else []
        if read:
            found += [(level - at_once) / read for level in levels]
        if computed != read:
            found.append((at_once - before) / (computed - read))
        return found

    @property
    def in_memory(self) -> "Bound":
        return replace(self, limit=min(self.limit, self.pinned), read_per_s=0.0, read_at_once=0.0)


def node_bound(model: ModelFacts, rank: int, node: NodeFacts) -> Bound:
    weights, kv_cache = model.whole_bytes
    used, experts = used_bytes(model, model.shape.whole), expert_bytes(model, model.shape.whole)
    pinned = pinned_limit(model, rank, node)
    disk, computed, before = node.disk_bytes_per_s, node.speed / used, -model.replicated_bytes / used
    if not node.streams or disk is None or (node.memory_bytes is None and node.keeping.pin != "none"):
        return Bound(pinned, pinned, computed, computed_at_once=before)
    head, limit, (ring, least) = _head(model, rank), pinned, _ring(model, rank, node)
    room = _room(model, rank, node)
    if node.memory_bytes is not None:
        fixed = kv_cache + experts
        streaming = min((room - least) / max(fixed, 1), room / (fixed + ring))
        limit = max(pinned, min(_disk_limit(model, rank, node, weights), streaming))
    if node.keeping.pin == "none":
        streamed = weights - experts
        return Bound(limit, -1.0, computed, disk / streamed, -head / streamed, before)
    kept = weights + kv_cache + ring
    return Bound(limit, pinned, computed, disk / kept, (room - least - head) / kept, before)


def fractions(bounds: Sequence[Bound]) -> tuple[list[float], float] | None:
    """Returns each node's fraction of a layer, and a lower bound of the slowest node's seconds. Returns None if the
    nodes are too small."""
    if min(bound.limit for bound in bounds) < 0 or sum(bound.limit for bound in bounds) < 1:
        return None
    seconds = _seconds_for_all(bounds)
    parts = [bound.at(seconds) for bound in bounds]
    whole = sum(parts)
    return [part / whole for part in parts], max(seconds, *(bound.least_s for bound in bounds))


def least_sweep_s(bounds: Sequence[Bound]) -> float:
    """Returns the seconds of a sweep in which every node computes all the time."""
    parts = 1 - sum(bound.computed_at_once for bound in bounds)
    return parts / max(sum(bound.computed_per_s for bound in bounds), 1 / _FOREVER_S)


def _seconds_for_all(bounds: Sequence[Bound]) -> float:
    """Returns the seconds of a sweep in which the nodes together take whole layers."""

    def taken(seconds: float) -> float:
        return sum(bound.at(seconds) for bound in bounds)

    least = least_sweep_s(bounds)
    if taken(least) >= _ALL:
        return least
    turns = [least, *sorted(turn for bound in bounds for turn in bound.turns if turn > least)]
    last = min(bisect_left(turns, _ALL, key=taken), len(turns) - 1)
    before, behind = turns[last - 1], turns[last]
    at, at_behind = taken(before), taken(behind)
    return before + (1 - at) / (at_behind - at) * (behind - before) if at_behind > at else behind


def shortage(model: ModelFacts, nodes: Sequence[NodeFacts], bounds: Sequence[Bound]) -> Infeasible:
    limits = [bound.limit for bound in bounds]
    weights, kv_cache = model.whole_bytes
    for rank, (node, limit) in enumerate(zip(nodes, limits, strict=True)):
        if limit < 0 and node.streams and node.memory_bytes is not None:
            _, least = _ring(model, rank, node)
            needed = node.memory_bytes - _room(model, rank, node) + least
            return Infeasible(
                f"node {rank} needs at least {format_least(needed)} with an empty share but may use "
                f"{format_bytes(node.memory_bytes)}"
            )
        if limit < 0:
            short = -limit * (weights + kv_cache)
            return Infeasible(
                f"node {rank} cannot hold even an empty share: it lacks {format_bytes(short)} for the program"
                f"{' and the LM head' if rank == 0 else ''}"
            )
    missing = (1 - sum(limits)) * (weights + kv_cache)
    parts = ", ".join(
        f"node {rank} takes {format_bytes(limit * (weights + kv_cache))}" for rank, limit in enumerate(limits)
    )
    remedies = "add a node or raise the memory limits"
    if model.smaller_precision:
        remedies = f"add a node, raise the memory limits or choose --precision {model.smaller_precision}"
    return Infeasible(
        f"the layers need {format_bytes(weights)} and the KV cache {format_bytes(kv_cache)}, but {parts}: "
        f"{format_bytes(missing)} too little; {remedies}"
    )


def _ring(model: ModelFacts, rank: int, node: NodeFacts) -> tuple[int, int]:
    """Returns the least bytes of a ring: (for whole layers, for any share)."""
    keeping, blocks = node.keeping, model.whole_blocks
    whole = max(smallest_ring(blocks, frozenset()), keeping.window_blocks * max(map(sum, blocks)))
    return whole, max(model.head_tile_bytes if rank == 0 else 0, keeping.window_bytes)


def _room(model: ModelFacts, rank: int, node: NodeFacts) -> int:
    base = base_bytes(model, node)
    return (node.memory_bytes or 0) - base - model.resident(rank)


def _head(model: ModelFacts, rank: int) -> int:
    return model.head_bytes if rank == 0 else 0


def _disk_limit(model: ModelFacts, rank: int, node: NodeFacts, weights: int) -> float:
    if node.free_disk_bytes is None:
        return 1.0
    own = model.resident(rank) + _head(model, rank)
    return min(1.0, (node.free_disk_bytes - own) / weights)
