"""From what machines have measured of themselves to who takes part, with which share, and why.

A machine on a slow link can cost more than it computes (`prediction`). Latency depends on the slowest link alone, so
the sets to begin with are the machines within each round trip. Who is left out takes no part in the epoch at all: with
an empty share alone it would still be waited for in every allreduce.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from tpiedge.errors import InternalError
from tpiedge.planner.fractions import Bound
from tpiedge.planner.needs import Infeasible, layer_bytes
from tpiedge.planner.partition import ShareWeight
from tpiedge.planner.prediction import (
    Demand,
    MachineFacts,
    Prediction,
    least_step_s,
    machine_bounds,
    predict,
    with_speeds,
    without_idle,
)
from tpiedge.planner.reasons import SpareReason, why_in, why_out
from tpiedge.planner.solve import Plan
from tpiedge.units import counted

_Option: TypeAlias = tuple[list[int], Prediction]  # members in rank order, the master's first
MOST_MACHINES = 32
"""Of one plan, the master's own among them."""
_FEW = 7  # machines whose sets are all looked at: 64 of them
_TRIES = 3  # of the sets of more machines, in the order of what they promise


@dataclass(frozen=True)
class Allocation:
    """`members[rank]` is the index of a machine, and `reasons[rank]` says in one sentence why it has its part; `spare`
    says why each other machine, by its index, has none."""

    members: tuple[int, ...]
    prediction: Prediction
    reasons: tuple[str, ...]
    spare: Mapping[int, SpareReason]

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
    out = SpareReason("shares", "its weight in --shares is 0")
    spare = {index: out for index in range(len(machines)) if index not in members}
    return Allocation(tuple(members), prediction, ("as --shares says",) * len(members), spare)


def _fastest(
    demand: Demand, machines: Sequence[MachineFacts], filled: Sequence[MachineFacts]
) -> Allocation | Infeasible:
    bounds = machine_bounds(demand, filled)
    able = [index for index, bound in enumerate(bounds) if index == 0 or bound.limit > 0]
    if len(able) - 1 < demand.min_workers:
        able = list(range(len(filled)))  # refused below, with the numbers
    candidates = _Candidates(demand, filled, bounds)
    found = candidates.best_set(able)
    if found is None:
        refusal = predict(demand, _pick(filled, able))
        if isinstance(refusal, Infeasible):
            return refusal
        raise InternalError("the planner's search missed a set of machines that holds the model")
    members, prediction = found
    plan = prediction.plan
    sizes = [layer_bytes(demand.model, share) for share in plan.shares]

    def spare_reason(index: int) -> SpareReason:
        least_s = candidates.least_step_s(sorted({*members, index})) or 0.0
        return why_out(demand, filled[index], bounds[index], (least_s, prediction.step_s), len(able) - 1)

    spare = {index: spare_reason(index) for index in range(len(machines)) if index not in members}
    reasons = tuple(
        why_in(demand, machines[index], filled, members, index, size / sum(sizes), need)
        for index, size, need in zip(members, sizes, plan.needs, strict=True)
    )
    return Allocation(tuple(members), prediction, reasons, spare)


@dataclass(frozen=True)
class _Candidates:
    """Machines that have speeds, the master's own first, and what each of them can take."""

    demand: Demand
    machines: Sequence[MachineFacts]
    bounds: Sequence[Bound]

    def best_set(self, able: Sequence[int]) -> _Option | None:
        """The fastest set, of few machines; of many, the fastest within some round trip, improved by one machine at a
        time. None if no set holds the model."""
        least = self.demand.min_workers
        if len(able) <= _FEW:
            workers = able[1:]
            counts = range(least, len(workers) + 1)
            every = [[0, *chosen] for count in counts for chosen in combinations(workers, count)]
            return self._best_of(every, len(every))
        nearest = sorted(able[1:], key=lambda index: (self.machines[index].round_trip_s, index))
        sets = [[0, *nearest[:count]] for count in range(least, len(nearest) + 1)]
        best = self._best_of(sets, _TRIES) or self._best_of(sets, len(sets))
        while best is not None:
            near = self._best_of(_neighbours(best[0], able), _TRIES, best)
            if near is None or near is best:
                break
            best = near
        return best

    def _best_of(
        self, sets: Sequence[Sequence[int]], tries: int, best: _Option | None = None
    ) -> _Option | None:
        """The fastest of the sets that hold the model, and of `best`; without members that would get nothing.

        Whole units are fitted for sets alone whose fractions are fast enough, and for at most `tries`: a plan is made
        between two heartbeats.
        """
        ranked = [(self.least_step_s(members), members) for members in map(sorted, sets)]
        promising = sorted((least_s, members) for least_s, members in ranked if least_s is not None)
        for least_s, members in promising[:tries]:
            if best is not None and least_s > _cost(best)[0]:
                break
            option = self._option(members)
            if option is not None and (best is None or _cost(option) < _cost(best)):
                best = option
        return best

    def least_step_s(self, members: Sequence[int]) -> float | None:
        return least_step_s(
            self.demand, _pick(self.machines, members), [self.bounds[index] for index in members]
        )

    def _option(self, members: list[int]) -> _Option | None:
        prediction = predict(self.demand, _pick(self.machines, members))
        if len(members) - 1 < self.demand.min_workers or isinstance(prediction, Infeasible):
            return None
        shares = enumerate(prediction.plan.shares)
        busy = [rank for rank, share in shares if rank == 0 or share.attention or share.ffn]
        if self.demand.min_workers < len(busy) < len(members):
            members = [members[rank] for rank in busy]
            prediction = without_idle(self.demand, _pick(self.machines, members), prediction, busy)
        return members, prediction


def _neighbours(members: Sequence[int], able: Sequence[int]) -> list[list[int]]:
    """The sets with one machine more or less; the master's stays."""
    return [[other for other in members if other != index] for index in members if index != 0] + [
        [*members, index] for index in able if index not in members
    ]


def _cost(option: _Option) -> tuple[float, int]:
    return option[1].step_s, len(option[0])


def _pick(machines: Sequence[MachineFacts], members: Sequence[int]) -> list[MachineFacts]:
    return [machines[index] for index in members]
