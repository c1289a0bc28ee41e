"""From what machines have measured of themselves to who takes part, with which share, and why.

A machine on a slow link can cost more than it computes (`prediction`). Latency depends on the slowest link alone, so
the sets to begin with are the machines within each round trip. Who is left out takes no part in the epoch at all: with
an empty share alone it would still be waited for in every allreduce.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

from tpiedge.errors import InternalError
from tpiedge.pack.share import NodeShare, Share
from tpiedge.planner.fractions import fraction_limit, pinned_limit
from tpiedge.planner.needs import Infeasible, ModelFacts, NodeNeed, layer_bytes
from tpiedge.planner.partition import ShareWeight
from tpiedge.planner.prediction import (
    Demand,
    MachineFacts,
    Prediction,
    least_step_s,
    node_facts,
    predict,
    with_speeds,
)
from tpiedge.planner.solve import Plan
from tpiedge.units import counted, format_bytes, format_seconds

__all__ = ["Allocation", "Allotment", "allocate"]

_Option: TypeAlias = tuple[list[int], Prediction]  # members in rank order, the master's first
_FEW = 7  # machines whose sets are all looked at: 64 of them
_TRIES = 3  # of the sets of more machines, in the order of what they promise
_NOTHING = NodeShare(Share(0, 0), Share(0, 0))


@dataclass(frozen=True)
class Allotment:
    """What one machine gets, and in one sentence why. `rank` is None for a machine that is left out."""

    name: str
    rank: int | None
    share: NodeShare
    need: NodeNeed | None
    fraction: float
    reason: str


@dataclass(frozen=True)
class Allocation:
    """`members[rank]` is the index of a machine; `plan` is theirs. `allotments` has one entry per machine."""

    members: tuple[int, ...]
    prediction: Prediction
    allotments: tuple[Allotment, ...]

    @property
    def plan(self) -> Plan:
        return self.prediction.plan


def allocate(
    demand: Demand, machines: Sequence[MachineFacts], weights: Sequence[ShareWeight] | None = None
) -> Allocation | Infeasible:
    """The fastest set of machines that can hold the model; `weights` (of --shares, one per machine) override."""
    missing = demand.min_workers - (len(machines) - 1)
    if missing > 0:
        return Infeasible(
            f"{len(machines) - 1} of {counted(demand.min_workers, 'worker')} here: waiting for {missing} more"
        )
    filled = with_speeds(machines)
    if weights is None:
        return _fastest(demand, machines, filled)
    members = [
        index for index, weight in enumerate(weights) if index == 0 or weight.attention + weight.ffn > 0
    ]
    prediction = predict(demand, _pick(filled, members), [weights[index] for index in members])
    if isinstance(prediction, Infeasible):
        return prediction
    reasons = dict.fromkeys(range(len(machines)), "left out: its weight in --shares is 0")
    reasons |= dict.fromkeys(members, "as --shares says")
    return _allocation(demand, machines, members, prediction, reasons)


def _fastest(
    demand: Demand, machines: Sequence[MachineFacts], filled: Sequence[MachineFacts]
) -> Allocation | Infeasible:
    able = [index for index, machine in enumerate(filled) if index == 0 or _limit(demand, machine) > 0]
    if len(able) - 1 < demand.min_workers:
        able = list(range(len(filled)))  # refused below, with the numbers
    found = _best_set(demand, filled, able)
    if found is None:
        refusal = predict(demand, _pick(filled, able))
        if isinstance(refusal, Infeasible):
            return refusal
        raise InternalError("the planner's search missed a set of machines that holds the model")
    members, prediction = found
    fractions = _fractions(demand.model, prediction.plan.shares)
    reasons = {
        index: _why_out(demand, filled, members, prediction, index)
        for index in range(len(machines))
        if index not in members
    }
    reasons |= {
        index: _why_in(demand, machines[index], filled, members, index, fraction, need)
        for index, fraction, need in zip(members, fractions, prediction.plan.needs, strict=True)
    }
    return _allocation(demand, machines, members, prediction, reasons)


def _best_set(demand: Demand, machines: Sequence[MachineFacts], able: Sequence[int]) -> _Option | None:
    """The fastest set, of few machines; of many, the fastest within some round trip, improved by one machine at a
    time. None if no set holds the model."""
    if len(able) <= _FEW:
        workers = able[1:]
        counts = range(demand.min_workers, len(workers) + 1)
        every = [[0, *chosen] for count in counts for chosen in combinations(workers, count)]
        return _best_of(demand, machines, every, len(every))
    nearest = sorted(able[1:], key=lambda index: (machines[index].round_trip_s, index))
    sets = [[0, *nearest[:count]] for count in range(demand.min_workers, len(nearest) + 1)]
    best = _best_of(demand, machines, sets, _TRIES) or _best_of(demand, machines, sets, len(sets))
    while best is not None:
        near = _best_of(demand, machines, _neighbours(best[0], able), _TRIES, best)
        if near is None or near is best:
            break
        best = near
    return best


def _neighbours(members: Sequence[int], able: Sequence[int]) -> list[list[int]]:
    """The sets with one machine more or less; the master's stays."""
    return [[other for other in members if other != index] for index in members if index != 0] + [
        [*members, index] for index in able if index not in members
    ]


def _best_of(
    demand: Demand,
    machines: Sequence[MachineFacts],
    sets: Sequence[Sequence[int]],
    tries: int,
    best: _Option | None = None,
) -> _Option | None:
    """The fastest of the sets that hold the model, and of `best`; without members that would get nothing.

    Whole units are fitted for sets alone whose fractions are fast enough, and for at most `tries`: a plan is made
    between two heartbeats.
    """
    ranked = [(least_step_s(demand, _pick(machines, sorted(members))), sorted(members)) for members in sets]
    promising = sorted((least_s, members) for least_s, members in ranked if least_s is not None)
    for least_s, members in promising[:tries]:
        if best is not None and least_s > _cost(best)[0]:
            break
        option = _option(demand, machines, members)
        if option is not None and (best is None or _cost(option) < _cost(best)):
            best = option
    return best


def _option(demand: Demand, machines: Sequence[MachineFacts], members: list[int]) -> _Option | None:
    prediction = predict(demand, _pick(machines, members))
    if len(members) - 1 < demand.min_workers or isinstance(prediction, Infeasible):
        return None
    shares = zip(members, prediction.plan.shares, strict=True)
    busy = [index for index, share in shares if index == 0 or share.attention or share.ffn]
    smaller = _option(demand, machines, busy) if len(busy) < len(members) else None
    return smaller or (members, prediction)


def _cost(option: _Option) -> tuple[float, int]:
    return option[1].step_s, len(option[0])


def _limit(demand: Demand, machine: MachineFacts) -> float:
    """The part of the layers that fits on a worker; not positive if not even an empty share does."""
    return fraction_limit(demand.model, 1, node_facts([machine])[0], demand.capacity_tokens)


def _pick(machines: Sequence[MachineFacts], members: Sequence[int]) -> list[MachineFacts]:
    return [machines[index] for index in members]


def _fractions(model: ModelFacts, shares: Sequence[NodeShare]) -> list[float]:
    sizes = [layer_bytes(model, share) for share in shares]
    return [size / sum(sizes) for size in sizes]


def _allocation(
    demand: Demand,
    machines: Sequence[MachineFacts],
    members: Sequence[int],
    prediction: Prediction,
    reasons: dict[int, str],
) -> Allocation:
    plan = prediction.plan
    fractions = _fractions(demand.model, plan.shares)

    def allotment(index: int) -> Allotment:
        name, reason = machines[index].name, reasons[index]
        if index not in members:
            return Allotment(name, None, _NOTHING, None, 0.0, reason)
        rank = members.index(index)
        return Allotment(name, rank, plan.shares[rank], plan.needs[rank], fractions[rank], reason)

    return Allocation(tuple(members), prediction, tuple(map(allotment, range(len(machines)))))


def _why_in(
    demand: Demand,
    machine: MachineFacts,
    filled: Sequence[MachineFacts],
    members: Sequence[int],
    index: int,
    fraction: float,
    need: NodeNeed,
) -> str:
    speed = filled[index].weight_bytes_per_s
    assumed = "" if machine.weight_bytes_per_s > 0 else " (assumed, not measured)"
    by_speed = speed / sum(filled[member].weight_bytes_per_s for member in members)
    limit = _limiting(demand, filled[index], members.index(index), by_speed)
    if need.streamed_bytes:
        limit = f"; {format_bytes(need.streamed_bytes)} of them stream from its disk"
    return f"{format_bytes(speed)}/s of weights{assumed}, {fraction:.0%} of the cluster{limit}"


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


def _why_out(
    demand: Demand, machines: Sequence[MachineFacts], members: Sequence[int], chosen: Prediction, index: int
) -> str:
    machine = machines[index]
    if _limit(demand, machine) <= 0:
        return "left out: its memory or disk does not hold even an empty share"
    widened = sorted({*members, index})
    wider = predict(demand, _pick(machines, widened))
    if isinstance(wider, Infeasible):
        return f"left out: {wider.reason}"
    share = wider.plan.shares[widened.index(index)]
    if not share.attention and not share.ffn:
        speed = format_bytes(machine.weight_bytes_per_s)
        return f"left out: for its {speed}/s of weights the smallest piece of work is too much"
    return (
        f"left out: a round trip of {format_seconds(machine.round_trip_s)} for {2 * demand.model.num_layers} "
        f"allreduces: {format_seconds(wider.step_s)} per step with it, {format_seconds(chosen.step_s)} without"
    )
