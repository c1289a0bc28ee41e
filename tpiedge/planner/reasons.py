"""Says in words why a machine has its part of a plan, or none. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpiedge.planner.fractions import pinned_limit
from tpiedge.planner.needs import Infeasible, NodeNeed
from tpiedge.planner.prediction import Demand, MachineFacts, Prediction, node_facts, predict, worker_limit
from tpiedge.units import format_bytes, format_seconds
from tpiedge.wire.fields import SpareKind

__all__ = ["SpareReason", "slower", "why_in", "why_out"]


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
    limit = _limiting(demand, filled[index], members.index(index), _by_speed(filled, members, index))
    if need.streamed_bytes:
        limit = f"; {format_bytes(need.streamed_bytes)} of them stream from its disk"
    return f"{format_bytes(speed)}/s of weights{assumed}, {fraction:.0%} of the cluster{limit}"


def why_out(
    demand: Demand,
    machines: Sequence[MachineFacts],
    members: Sequence[int],
    chosen: Prediction,
    index: int,
    workers: int,
) -> SpareReason:
    """Why machine `index` is not among the `members`, for which `chosen` was predicted, though `workers` could be."""
    machine = machines[index]
    if worker_limit(demand, machine) <= 0:
        return SpareReason("no room", "its memory or disk does not hold even an empty share")
    widened = sorted({*members, index})
    wider = predict(demand, [machines[member] for member in widened])
    if isinstance(wider, Infeasible):
        return SpareReason("no room", wider.reason)
    rank = widened.index(index)
    share = wider.plan.shares[rank]
    if not share.attention and not share.ffn:
        limit = _limiting(demand, machine, rank, _by_speed(machines, widened, index))
        speed = format_bytes(machine.weight_bytes_per_s)
        return SpareReason(
            "slower", f"for its {speed}/s of weights even the smallest piece of work is too much{limit}"
        )
    trip = format_seconds(machine.round_trip_s)
    because = f"{2 * demand.model.num_layers} exchanges a token; its link's round trip takes {trip}"
    return slower(wider.step_s, chosen.step_s, because, workers)


def _by_speed(machines: Sequence[MachineFacts], members: Sequence[int], index: int) -> float:
    """The part of the layers that its speed alone would give to a machine."""
    return machines[index].weight_bytes_per_s / sum(machines[one].weight_bytes_per_s for one in members)


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
