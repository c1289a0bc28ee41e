"""Which part of every layer each node takes, as real numbers: as much as it can in the time that the slowest takes.

With a fraction f of the layers a node computes f W / speed seconds, and reads what does not fit in its memory in
(f W - pinned) / disk rate seconds beside it (TPI-LLM, section 3.3: loading hides behind computing and communicating).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tpiedge.memory.residency import smallest_ring
from tpiedge.pack.share import NodeShare, Share
from tpiedge.planner.needs import Infeasible, ModelFacts, NodeFacts, base_bytes, pieces_of_blocks
from tpiedge.units import format_bytes, format_least

__all__ = ["fraction_limit", "fractions", "pinned_limit", "shortage", "water_fill", "whole_bytes"]

_STEPS = 60
_FOREVER_S = 1e30  # of a node without any speed


def whole_bytes(model: ModelFacts, capacity_tokens: int) -> tuple[int, int]:
    """Bytes of (all sliced weights, all KV heads) of the model."""
    attention, ffn = _block_bytes(model)
    pages = -(-capacity_tokens // model.kv_page_tokens)
    kv_bytes = model.shape.kv_heads * model.kv_part_bytes * pages
    return model.num_layers * (attention + ffn), model.num_layers * kv_bytes


def pinned_limit(model: ModelFacts, rank: int, node: NodeFacts, capacity_tokens: int) -> float:
    """The largest part of every layer that fits in the node's memory and on its disk (1.0: all of it)."""
    weights, kv_cache = whole_bytes(model, capacity_tokens)
    limit = _disk_limit(model, rank, node, weights)
    if node.memory_bytes is not None:
        limit = min(limit, (_room(model, node, capacity_tokens) - _head(model, rank)) / (weights + kv_cache))
    return limit


def fraction_limit(model: ModelFacts, rank: int, node: NodeFacts, capacity_tokens: int) -> float:
    """The largest part that the node can take, if need be with weights that stream."""
    pinned = pinned_limit(model, rank, node, capacity_tokens)
    if not node.streams or node.memory_bytes is None:
        return pinned
    weights, kv_cache = whole_bytes(model, capacity_tokens)
    ring, least = _ring(model, rank, node)
    room = _room(model, node, capacity_tokens)
    streaming = min((room - least) / max(kv_cache, 1), room / (kv_cache + ring))
    return max(pinned, min(_disk_limit(model, rank, node, weights), streaming))


def fractions(
    model: ModelFacts, nodes: Sequence[NodeFacts], limits: Sequence[float], capacity_tokens: int
) -> tuple[list[float], float]:
    """Fractions that sum to 1 with which the slowest node is as fast as can be, found by halving the time; and that
    time, which whole units do not beat.

    `limits` (`fraction_limit`) are not negative and sum to 1 at least.
    """
    lines = [_line(model, rank, node, limits[rank], capacity_tokens) for rank, node in enumerate(nodes)]
    low, high = 0.0, 1e-9
    while sum(line.at(high) for line in lines) < 1 and high < _FOREVER_S:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(line.at(middle) for line in lines) >= 1 else (middle, high)
    parts = [line.at(high) for line in lines]
    return [part / sum(parts) for part in parts], max(high, *(line.least_s for line in lines))


@dataclass(frozen=True, slots=True)
class _Line:
    """The part of every layer that a node computes, and reads where it must, in some time."""

    limit: float
    pinned: float
    computed_per_s: float
    read_per_s: float
    read_at_once: float

    def at(self, seconds: float) -> float:
        read = max(self.pinned, seconds * self.read_per_s + self.read_at_once)
        return max(0.0, min(self.limit, seconds * self.computed_per_s, read))

    @property
    def least_s(self) -> float:
        """Seconds of a sweep with nothing of any layer: rank 0 may have to read the LM head."""
        if self.pinned >= 0 or not self.read_per_s:
            return 0.0
        return max(0.0, -self.read_at_once / self.read_per_s)


def water_fill(speeds: Sequence[float], limits: Sequence[float]) -> list[float] | None:
    """Fractions that sum to 1, proportional to speed up to each limit; None if the limits sum to less."""
    if sum(limits) < 1:
        return None
    parts = [0.0] * len(speeds)
    open_nodes = [index for index, speed in enumerate(speeds) if speed > 0 and limits[index] > 0]
    rest = 1.0
    while open_nodes:
        level = rest / sum(speeds[index] for index in open_nodes)
        full = [index for index in open_nodes if level * speeds[index] >= limits[index]]
        if not full:
            for index in open_nodes:
                parts[index] = level * speeds[index]
            return parts
        for index in full:
            parts[index] = limits[index]
            rest -= limits[index]
        open_nodes = [index for index in open_nodes if index not in full]
    return parts if rest < 1e-9 else None


def shortage(
    model: ModelFacts, nodes: Sequence[NodeFacts], limits: Sequence[float], capacity_tokens: int
) -> Infeasible:
    """Why nodes with such limits cannot hold the model."""
    weights, kv_cache = whole_bytes(model, capacity_tokens)
    for rank, (node, limit) in enumerate(zip(nodes, limits, strict=True)):
        if limit < 0 and node.streams and node.memory_bytes is not None:
            _, least = _ring(model, rank, node)
            needed = node.memory_bytes - _room(model, node, capacity_tokens) + least
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
    return Infeasible(
        f"the layers need {format_bytes(weights)} and the KV cache {format_bytes(kv_cache)}, but {parts}: "
        f"{format_bytes(missing)} too little; {_remedies(model)}"
    )


def _remedies(model: ModelFacts) -> str:
    if model.smaller_precision:
        return f"add a node, raise the memory limits or choose --precision {model.smaller_precision}"
    return "add a node or raise the memory limits"


def _line(model: ModelFacts, rank: int, node: NodeFacts, limit: float, capacity_tokens: int) -> _Line:
    weights, kv_cache = whole_bytes(model, capacity_tokens)
    computed, disk = node.speed / weights, node.disk_bytes_per_s
    pinned = pinned_limit(model, rank, node, capacity_tokens)
    if not node.streams or disk is None:
        return _Line(limit, pinned, computed, 0.0, 0.0)
    head = _head(model, rank)
    if node.keeping.pin == "none":
        return _Line(limit, -1.0, computed, disk / weights, -head / weights)
    if node.memory_bytes is None:
        return _Line(limit, pinned, computed, 0.0, 0.0)
    ring, least = _ring(model, rank, node)
    kept = weights + kv_cache + ring
    room = _room(model, node, capacity_tokens) - least - head
    return _Line(limit, pinned, computed, disk / kept, room / kept)


def _ring(model: ModelFacts, rank: int, node: NodeFacts) -> tuple[int, int]:
    """(bytes of the smallest ring of a node with all of every layer, bytes of any ring)."""
    attention, ffn = _block_bytes(model)
    keeping = node.keeping
    whole = max(smallest_ring(_blocks(model), frozenset()), keeping.window_blocks * max(attention, ffn))
    return whole, max(model.head_tile_bytes if rank == 0 else 0, keeping.window_bytes)


def _block_bytes(model: ModelFacts) -> tuple[int, int]:
    """(attention, FFN) of one layer."""
    attention, ffn, *_ = map(sum, _blocks(model))
    return attention, ffn


def _blocks(model: ModelFacts) -> tuple[tuple[int, ...], ...]:
    """The bytes of each matrix of one layer, by blocks."""
    everything = NodeShare(Share(0, model.shape.heads), Share(0, model.shape.ffn_tiles))
    return pieces_of_blocks(model, 1, everything)


def _room(model: ModelFacts, node: NodeFacts, capacity_tokens: int) -> int:
    """Bytes for matrices and KV cache."""
    base = base_bytes(model, node, capacity_tokens)
    return (node.memory_bytes or 0) - base - model.num_layers * model.resident_bytes


def _head(model: ModelFacts, rank: int) -> int:
    return model.head_bytes if rank == 0 else 0


def _disk_limit(model: ModelFacts, rank: int, node: NodeFacts, weights: int) -> float:
    if node.free_disk_bytes is None:
        return 1.0
    own = model.num_layers * model.resident_bytes + _head(model, rank)
    return min(1.0, (node.free_disk_bytes - own) / weights)
