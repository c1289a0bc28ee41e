"""Says in words why a machine has its part of a plan, or none. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpiedge.kernels.shared_library import NO_ISA
from tpiedge.pack.share import NodeShare, Share
from tpiedge.planner.fractions import Bound, pinned_limit
from tpiedge.planner.needs import NodeNeed
from tpiedge.planner.partition import LayerShape, ShareWeight, partition
from tpiedge.planner.prediction import Demand, MachineFacts, node_facts
from tpiedge.planner.streaming import smallest_bytes
from tpiedge.units import format_bytes, format_least, format_seconds
from tpiedge.wire.fields import SpareKind


@dataclass(frozen=True)
class SpareReason:
    """Why a machine has no part in the plan. `why` is a sentence about "it", the machine."""

    kind: SpareKind
    why: str


def slower(with_s: float, without_s: float, because: str, workers: int) -> SpareReason:
    """The plan is as fast without the machine. Seconds are those of a token; `workers` can take part at all."""
    return SpareReason(
        "slower",
        f"a token takes about {format_seconds(with_s)} with it and {format_seconds(without_s)} without it "
        f"({because}); the master's --min-workers {workers} takes it in",
    )


def drained(name: str) -> SpareReason:
    """The user of the worker `name` wants to do without it."""
    return SpareReason(
        "drained",
        f"it may be switched off; 'tpiedge nodes drain {name} --undo' on the master's computer takes it in again, as "
        "does a new start of its worker",
    )


def without_native(demand: Demand, isa: str) -> SpareReason | None:
    """Why a worker that computes with `isa` has no part in the model; None where it can have one."""
    if not demand.model.needs_native or isa != NO_ISA:
        return None
    return SpareReason(
        "no room",
        "it has no native kernels, which weights, keys and values in q8 and q4 need: on its computer, unset "
        "TPIEDGE_NATIVE, or install a C++ compiler and type 'make setup', or install a wheel of tpiedge",
    )


def too_small(demand: Demand, machine: MachineFacts) -> SpareReason | None:
    """Why no plan has a part for a worker with so little memory; None where one can."""
    (node,) = node_facts([machine])
    least = min(
        smallest_bytes(demand.model, 1, share, node, demand.capacity_tokens)
        for share in _smallest_shares(demand.model.shape)
    )
    if node.memory_bytes is None or node.memory_bytes >= least:
        return None
    return SpareReason(
        "too small",
        f"it offers {format_bytes(node.memory_bytes)}, but the least that works for {demand.model_name} is "
        f"{format_least(least)}: start it again with --memory {format_least(least).replace(' ', '')} or more",
    )


def master_too_small(
    demand: Demand, machine: MachineFacts, weights: Sequence[ShareWeight] | None
) -> str | None:
    """Why no plan works with a master's machine of so little memory, however many workers join; None where one may.

    `weights` are those of --shares, the master's first; without them it may have no part of any layer.
    """
    model, (node,) = demand.model, node_facts([machine])
    nothing = NodeShare(Share(0, 0), Share(0, 0))
    share = nothing if weights is None else partition(model.shape, weights)[0]
    least = smallest_bytes(model, 0, share, node, demand.capacity_tokens)
    if node.memory_bytes is None or node.memory_bytes >= least:
        return None
    part = "alone, whatever workers compute," if weights is None else "and its part of --shares"
    return (
        f"the master may use {format_bytes(node.memory_bytes)}, but its program and the LM head of {demand.model_name} "
        f"{part} need {format_least(least)}: give --memory {format_least(least).replace(' ', '')} or more"
    )


def _smallest_shares(shape: LayerShape) -> tuple[NodeShare, ...]:
    """The last tile, which may be a short one, and the heads of one KV head."""
    nothing = Share(0, 0)
    return (
        NodeShare(nothing, Share(shape.ffn_tiles - 1, shape.ffn_tiles)),
        NodeShare(Share(0, shape.group_size), nothing),
    )


def why_in(
    demand: Demand,
    machine: MachineFacts,
    filled: Sequence[MachineFacts],
    members: Sequence[int],
    index: int,
    fraction: float,
    need: NodeNeed,
) -> str:
    """Why machine `index` of the `filled`, which has a speed, gets `fraction` of the layers beside the `members`."""
    speed = filled[index].weight_bytes_per_s
    assumed = "" if machine.weight_bytes_per_s > 0 else " (assumed, not measured)"
    by_speed = speed / sum(filled[member].weight_bytes_per_s for member in members)
    limit = _limiting(demand, filled[index], members.index(index), by_speed)
    if need.streamed_bytes:
        limit = f"; {format_bytes(need.streamed_bytes)} of them stream from its disk"
    return f"{format_bytes(speed)}/s of weights{assumed}, {fraction:.0%} of the cluster{limit}"


def why_out(
    demand: Demand, machine: MachineFacts, bound: Bound, seconds: tuple[float, float], workers: int
) -> SpareReason:
    """Why a machine of that bound has no part, though `workers` could have one. `seconds` of a token: the least with
    it, and without it."""
    small = too_small(demand, machine)
    if small is not None:
        return small
    if bound.limit * demand.model.shape.ffn_tiles < 1:
        free = format_bytes(machine.free_disk_bytes or 0)
        return SpareReason("no room", f"its disk has {free} for weights, which is too little for any share")
    least_s, without_s = seconds
    trip = format_seconds(machine.round_trip_s)
    because = f"{2 * demand.model.num_layers} exchanges a token; its link's round trip takes {trip}"
    return slower(max(least_s, without_s), without_s, because, workers)  # with whole units it is no faster


def _limiting(demand: Demand, machine: MachineFacts, rank: int, by_speed: float) -> str:
    """What keeps a machine from the part that its speed alone would give it."""
    (node,) = node_facts([machine])
    limits = [
        (pinned_limit(demand.model, rank, alone, demand.capacity_tokens), words, nbytes)
        for words, nbytes, alone in (
            ("memory", node.memory_bytes, replace(node, free_disk_bytes=None)),
            ("free disk", node.free_disk_bytes, replace(node, memory_bytes=None)),
        )
        if nbytes is not None
    ]
    limit, words, nbytes = min(limits, default=(1.0, "", 0))
    return f"; limited by {words} {format_bytes(nbytes)}" if limit < by_speed else ""
