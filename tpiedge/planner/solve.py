"""From capacities to shares, as a pure function (design, section 5: decide purely).

Time. Every block ends in an allreduce, so a step lasts as long as the slowest node's layers, and then rank 0 computes
the LM head while the others wait: step = max_i(fraction_i * layer_bytes / speed_i) + head_bytes / speed_0. The head
does not overlap with the layers, so it does not move the split; it is a serial term of the prediction.

Memory. A node holds its weights, its KV cache and a fixed part (interpreter with torch, buffers, activations); rank 0
also the head. The split is proportional to speed as long as every node's part fits, and water-filled otherwise: full
nodes keep what fits and the others take the rest in proportion to their speeds. Heads are coarse, so where whole heads
do not fit so exactly, FFN tiles, which are fine, go to the nodes that still have room.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from tpiedge.pack.share import NodeShare, Share, kv_share
from tpiedge.planner.partition import (
    Shape,
    Weight,
    apportion_within,
    heads_per_cut,
    intervals,
    partition,
)
from tpiedge.units import MIB, format_bytes
from tpiedge.wire.control import ALL_PINNED, WeightMemory

__all__ = [
    "NODE_BASE_BYTES",
    "Infeasible",
    "ModelFacts",
    "NodeFacts",
    "NodeNeed",
    "Plan",
    "evaluate",
    "fraction_limit",
    "layer_bytes",
    "solve",
]

#: Interpreter, torch's libraries, socket buffers and activations of a node: what a node may weigh beyond weights + KV.
NODE_BASE_BYTES = 350 * MIB

_HasRoom: TypeAlias = Callable[[int, NodeShare], bool]  # of the node of a rank


@dataclass(frozen=True)
class ModelFacts:
    """Bytes of a model's parts, per layer where not said."""

    shape: Shape
    num_layers: int
    query_unit_bytes: int
    kv_unit_bytes: int
    ffn_tile_bytes: int
    last_tile_bytes: int
    resident_bytes: int
    head_bytes: int
    #: Of one KV head in one layer for one token.
    kv_token_bytes: int


@dataclass(frozen=True)
class NodeFacts:
    """What a node can do. `speed` is in weight bytes per second, or relative in any scale."""

    speed: float
    memory_bytes: int | None = None
    free_disk_bytes: int | None = None


@dataclass(frozen=True)
class NodeNeed:
    """Predicted bytes of one node."""

    weight_bytes: int
    kv_bytes: int
    base_bytes: int
    #: How the weights are held.
    weights: WeightMemory = ALL_PINNED

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.base_bytes


@dataclass(frozen=True)
class Plan:
    """Shares in rank order with what they cost. `layers_s` and `head_s` are in units of bytes / speed."""

    shares: tuple[NodeShare, ...]
    needs: tuple[NodeNeed, ...]
    layers_s: float
    head_s: float


@dataclass(frozen=True)
class Infeasible:
    """No plan: `reason` is one line with the numbers."""

    reason: str


def node_need(model: ModelFacts, rank: int, share: NodeShare, capacity_tokens: int) -> NodeNeed:
    """Bytes of the node `rank` with `share` and room for `capacity_tokens` in the KV cache."""
    kv_heads = len(kv_share(share.attention, model.shape.group_size))
    layers = model.num_layers * (layer_bytes(model, share) + model.resident_bytes)
    head = model.head_bytes if rank == 0 else 0
    kv_bytes = kv_heads * model.kv_token_bytes * capacity_tokens * model.num_layers
    return NodeNeed(layers + head, kv_bytes, NODE_BASE_BYTES)


def layer_bytes(model: ModelFacts, share: NodeShare) -> int:
    """Bytes of the share's matrices in one layer."""
    has_last = len(share.ffn) > 0 and share.ffn.stop == model.shape.ffn_tiles
    tiles = len(share.ffn) * model.ffn_tile_bytes - has_last * (model.ffn_tile_bytes - model.last_tile_bytes)
    kv_heads = len(kv_share(share.attention, model.shape.group_size))
    return len(share.attention) * model.query_unit_bytes + kv_heads * model.kv_unit_bytes + tiles


def evaluate(
    model: ModelFacts, nodes: Sequence[NodeFacts], weights: Sequence[Weight], capacity_tokens: int
) -> Plan | Infeasible:
    """The plan of given weights, refused if a node's part exceeds its memory or its disk."""
    return _judged(model, nodes, partition(model.shape, weights), capacity_tokens)


def _judged(
    model: ModelFacts, nodes: Sequence[NodeFacts], shares: tuple[NodeShare, ...], capacity_tokens: int
) -> Plan | Infeasible:
    needs = tuple(node_need(model, rank, share, capacity_tokens) for rank, share in enumerate(shares))
    refusals = [
        refusal
        for rank, (node, need) in enumerate(zip(nodes, needs, strict=True))
        if (refusal := _refusal(rank, node, need)) is not None
    ]
    if refusals:
        return Infeasible("; ".join(refusals))
    layers_s = max(
        model.num_layers * layer_bytes(model, share) / node.speed
        for node, share in zip(nodes, shares, strict=True)
    )
    return Plan(shares, needs, layers_s, model.head_bytes / nodes[0].speed)


def _refusal(rank: int, node: NodeFacts, need: NodeNeed) -> str | None:
    if node.memory_bytes is not None and need.total_bytes > node.memory_bytes:
        return (
            f"node {rank} needs {format_bytes(need.total_bytes)} (weights {format_bytes(need.weight_bytes)}, KV cache "
            f"{format_bytes(need.kv_bytes)}, program {format_bytes(need.base_bytes)}) but may use "
            f"{format_bytes(node.memory_bytes)}: {format_bytes(need.total_bytes - node.memory_bytes)} too little"
        )
    if node.free_disk_bytes is not None and need.weight_bytes > node.free_disk_bytes:
        return (
            f"node {rank} needs {format_bytes(need.weight_bytes)} on disk but has "
            f"{format_bytes(node.free_disk_bytes)} free"
        )
    return None


def solve(model: ModelFacts, nodes: Sequence[NodeFacts], capacity_tokens: int) -> Plan | Infeasible:
    """Shares in proportion to speed within every node's memory and disk, or the reason why there are none."""
    limits = [fraction_limit(model, rank, node, capacity_tokens) for rank, node in enumerate(nodes)]
    fractions = _water_fill([node.speed for node in nodes], limits)
    if fractions is None:
        return _shortage(model, limits, capacity_tokens)
    plan = evaluate(model, nodes, [Weight(part, part) for part in fractions], capacity_tokens)
    if isinstance(plan, Plan):
        return plan
    shares = _fit_whole_units(model, nodes, fractions, capacity_tokens)
    return plan if shares is None else _judged(model, nodes, shares, capacity_tokens)


def _fit_whole_units(
    model: ModelFacts, nodes: Sequence[NodeFacts], fractions: Sequence[float], capacity_tokens: int
) -> tuple[NodeShare, ...] | None:
    """Attention within every node's room, then the FFN within what attention leaves, both by `fractions`.

    KV heads that are replicated take room twice, so if need be only the largest nodes get attention.
    """

    def has_room(rank: int, share: NodeShare) -> bool:
        return _refusal(rank, nodes[rank], node_need(model, rank, share, capacity_tokens)) is None

    for least in sorted(part for part in set(fractions) if part > 0):
        attention = _fit_attention(
            model.shape, [part if part >= least else 0 for part in fractions], has_room
        )
        tiles = attention and _fit_ffn(model.shape, fractions, attention, has_room)
        if attention and tiles:
            return tuple(map(NodeShare, attention, tiles))
    return None


def _fit_attention(shape: Shape, weights: Sequence[float], has_room: _HasRoom) -> list[Share] | None:
    cut = heads_per_cut(shape, weights)
    cuts = shape.heads // cut

    def fits(rank: int, count: int) -> bool:
        # Heads from the last of a group on cover the most KV heads: wherever the cuts fall, no more is needed.
        start = min(shape.group_size - cut, shape.heads - count * cut)
        return has_room(rank, NodeShare(Share(start, start + count * cut), Share(0, 0)))

    caps = [_most(cuts, partial(fits, rank)) for rank in range(len(weights))]
    counts = apportion_within(weights, cuts, caps)
    return None if counts is None else intervals([cut * count for count in counts])


def _fit_ffn(
    shape: Shape, weights: Sequence[float], attention: Sequence[Share], has_room: _HasRoom
) -> list[Share] | None:
    last = max(rank for rank, weight in enumerate(weights) if weight > 0)

    def fits(rank: int, count: int) -> bool:
        start = shape.ffn_tiles - count if rank == last else 0  # the last tile may be a short one
        return has_room(rank, NodeShare(attention[rank], Share(start, start + count)))

    caps = [_most(shape.ffn_tiles, partial(fits, rank)) for rank in range(len(weights))]
    counts = apportion_within(weights, shape.ffn_tiles, caps)
    return None if counts is None else intervals(counts)


def _most(units: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `units` that fits, 0 if none does."""
    return max(0, bisect_left(range(units + 1), True, key=lambda count: not fits(count)) - 1)


def _whole_bytes(model: ModelFacts, capacity_tokens: int) -> tuple[int, int]:
    """Bytes of (all sliced weights, all KV heads) of the model."""
    shape = model.shape
    layer = (
        shape.heads * model.query_unit_bytes
        + shape.kv_heads * model.kv_unit_bytes
        + (shape.ffn_tiles - 1) * model.ffn_tile_bytes
        + model.last_tile_bytes
    )
    kv_bytes = shape.kv_heads * model.kv_token_bytes * capacity_tokens
    return model.num_layers * layer, model.num_layers * kv_bytes


def fraction_limit(model: ModelFacts, rank: int, node: NodeFacts, capacity_tokens: int) -> float:
    """The largest part of every layer that fits on the node (1.0: all of it)."""
    weights, kv_cache = _whole_bytes(model, capacity_tokens)
    own = model.num_layers * model.resident_bytes + (model.head_bytes if rank == 0 else 0)
    limit = 1.0
    if node.memory_bytes is not None:
        limit = min(limit, (node.memory_bytes - NODE_BASE_BYTES - own) / (weights + kv_cache))
    if node.free_disk_bytes is not None:
        limit = min(limit, (node.free_disk_bytes - own) / weights)
    return limit


def _water_fill(speeds: Sequence[float], limits: Sequence[float]) -> list[float] | None:
    """Fractions that sum to 1, proportional to speed up to each limit; None if the limits sum to less."""
    if min(limits) < 0 or sum(limits) < 1:
        return None
    fractions = [0.0] * len(speeds)
    open_nodes = [index for index, speed in enumerate(speeds) if speed > 0 and limits[index] > 0]
    rest = 1.0
    while open_nodes:
        level = rest / sum(speeds[index] for index in open_nodes)
        full = [index for index in open_nodes if level * speeds[index] >= limits[index]]
        if not full:
            for index in open_nodes:
                fractions[index] = level * speeds[index]
            return fractions
        for index in full:
            fractions[index] = limits[index]
            rest -= limits[index]
        open_nodes = [index for index in open_nodes if index not in full]
    return fractions if rest < 1e-9 else None


def _shortage(model: ModelFacts, limits: Sequence[float], capacity_tokens: int) -> Infeasible:
    weights, kv_cache = _whole_bytes(model, capacity_tokens)
    for rank, limit in enumerate(limits):
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
        f"{format_bytes(missing)} too little; add a node, raise the memory limits or choose a smaller precision"
    )
