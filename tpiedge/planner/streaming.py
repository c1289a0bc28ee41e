"""How a node holds weights of which not all fit: what stays, and the ring that the others pass through. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from tpiedge.memory.residency import smallest_ring
from tpiedge.memory.sweep import ring_bytes
from tpiedge.pack.share import NodeShare
from tpiedge.planner.needs import (
    Infeasible,
    ModelFacts,
    NodeFacts,
    NodeNeed,
    layer_bytes,
    pieces_of_blocks,
    whole_need,
)
from tpiedge.units import format_bytes, format_least
from tpiedge.wire.weights import Keeping, WeightMemory

_REMEDY = "raise its memory limit or shorten the context"


def node_need(
    model: ModelFacts, rank: int, share: NodeShare, node: NodeFacts, capacity_tokens: int
) -> NodeNeed | Infeasible:
    """What `rank` takes with `share`: all weights in memory, or as many as there is room for where it may stream."""
    whole = whole_need(model, rank, share, node, capacity_tokens)
    if node.free_disk_bytes is not None and whole.weight_bytes > node.free_disk_bytes:
        return Infeasible(
            f"node {rank} needs {format_bytes(whole.weight_bytes)} on disk but has "
            f"{format_bytes(node.free_disk_bytes)} free"
        )
    if node.streams:
        return _held(model, rank, share, whole, node)
    if node.memory_bytes is not None and whole.total_bytes > node.memory_bytes:
        return Infeasible(
            f"node {rank} needs {format_bytes(whole.total_bytes)} ({whole.words}) but may use "
            f"{format_bytes(node.memory_bytes)}: {format_bytes(whole.total_bytes - node.memory_bytes)} too "
            f"little; {_REMEDY}"
        )
    return replace(whole, weights=WeightMemory(0, 0, "all", node.keeping.direct))


def smallest_bytes(
    model: ModelFacts, rank: int, share: NodeShare, node: NodeFacts, capacity_tokens: int
) -> int:
    """The least memory with which the node works, whatever `node.memory_bytes` says."""
    whole = whole_need(model, rank, share, node, capacity_tokens)
    matrices, blocks = _matrix_bytes(model, whole), pieces_of_blocks(model, rank, share)
    window = _window(blocks, matrices, node.keeping)
    return whole.total_bytes - matrices + _least(blocks, matrices, window, node.keeping)


def node_seconds(model: ModelFacts, share: NodeShare, node: NodeFacts, need: NodeNeed) -> float:
    """The time of all layers of one sweep, in units of bytes / speed: reading goes on beside computing."""
    loading = need.streamed_bytes / node.disk_bytes_per_s if node.disk_bytes_per_s else 0.0
    return max(model.num_layers * layer_bytes(model, share) / node.speed, loading)


def head_seconds(model: ModelFacts, node: NodeFacts) -> float:
    """The time of the LM head for one token, in units of bytes / speed."""
    return model.head_bytes / (node.head_speed or node.speed)


def _held(
    model: ModelFacts, rank: int, share: NodeShare, whole: NodeNeed, node: NodeFacts
) -> NodeNeed | Infeasible:
    """`whole` made to fit, or the least that would work."""
    keeping, matrices = node.keeping, _matrix_bytes(model, whole)
    fixed = whole.total_bytes - matrices
    has_room = node.memory_bytes is None or whole.total_bytes <= node.memory_bytes
    if has_room and keeping.pin == "auto" and not (keeping.window_bytes or keeping.window_blocks):
        return replace(whole, weights=WeightMemory(matrices, 0, "all", keeping.direct))
    blocks = pieces_of_blocks(model, rank, share)
    window = _window(blocks, matrices, keeping)
    least = _least(blocks, matrices, window, keeping)
    enough = max(matrices, least)  # a ring may be larger than all matrices of a small model
    room = enough if node.memory_bytes is None else min(enough, node.memory_bytes - fixed)
    if room < least:
        return Infeasible(
            f"node {rank} needs at least {format_least(fixed + least)} (weights {format_bytes(least)} of "
            f"{format_bytes(matrices)}, KV cache {format_bytes(whole.kv_bytes)}, program "
            f"{format_bytes(whole.base_bytes)})"
            + (
                f" but may use {format_bytes(node.memory_bytes)}; {_REMEDY}"
                if node.memory_bytes is not None
                else ""
            )
        )
    kept, streamed = room, 0
    if keeping.pin == "none" or room < matrices:
        ring = ring_bytes(blocks, frozenset(), window or None, room)
        kept = ring if keeping.pin == "none" else room
        streamed = matrices - (kept - ring)
    # What needs no memory that the KV cache leaves free does not ask for it.
    pin = "all" if keeping.pin == "auto" and not streamed else keeping.pin
    weights = WeightMemory(room, window, pin, keeping.direct)
    return replace(
        whole, weight_bytes=whole.weight_bytes - matrices + kept, weights=weights, streamed_bytes=streamed
    )


def _least(blocks: Sequence[Sequence[int]], matrices: int, window: int, keeping: Keeping) -> int:
    """Bytes of matrices that must be held at once."""
    if keeping.pin == "all":
        return matrices
    least = max(smallest_ring(blocks, frozenset()), window)
    return least if keeping.pin == "none" else min(matrices, least)


def _window(blocks: Sequence[Sequence[int]], matrices: int, keeping: Keeping) -> int:
    """Bytes of the ring that the user wants; 0: none in particular."""
    return min(keeping.window_bytes or keeping.window_blocks * max(map(sum, blocks)), matrices)


def _matrix_bytes(model: ModelFacts, whole: NodeNeed) -> int:
    return whole.weight_bytes - model.num_layers * model.resident_bytes
