"""Decides which machines take part, with which share, and why.

A machine can cost more time than it saves. With at most 7 machines, all sets are tried. With more machines, the search
begins with one set per number of workers: the workers with the shortest round trips, because latency depends only on
the slowest link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

from tpiedge.errors import InternalError
from tpiedge.kernels.shared_library import NO_ISA
from tpiedge.pack.share import Share
from tpiedge.planner.fractions import Bound, node_bound, pinned_limit
from tpiedge.planner.needs import Infeasible, ModelFacts, layers_bytes, smallest_bytes
from tpiedge.planner.prediction import MachineFacts, least_step_s, measured, predict, without_idle
from tpiedge.planner.solve import Plan, ShareWeight, partition
from tpiedge.units import counted, format_bytes, format_least, format_seconds
from tpiedge.wire.fields import SpareKind

_Option: TypeAlias = tuple[list[int], Plan]  # members in rank order, the master's first
MOST_MACHINES = 32  # of one plan, the master's own among them
_FEW = 7  # most machines of which all sets are tried: 64 sets
_TRIES = 3  # most promising sets of more machines that are tried


@dataclass(frozen=True)
class SpareReason:
    """The reason why a machine has no part. `why` is a sentence that calls the machine "it"."""

    kind: SpareKind
    why: str


@dataclass(frozen=True)
class Allocation:
    members: tuple[int, ...]  # by rank: a machine's index
    plan: Plan
    reasons: tuple[str, ...]  # by rank: why the machine has a part
    spare: Mapping[int, SpareReason]  # by index: why a machine has no part


def allocate(
    model: ModelFacts,
    machines: Sequence[MachineFacts],
    weights: Sequence[ShareWeight] | None = None,
    min_workers: int = 0,
) -> Allocation | Infeasible:
    """Finds the fastest set of machines that holds the model. With `weights` (--shares), machines of weight 0 are left
    out."""
    missing = min_workers - (len(machines) - 1)
    if missing > 0:
        return Infeasible(f"{counted(missing, 'more worker')} needed (--min-workers {min_workers})")
    filled = measured(machines)
    if weights is None:
        return _fastest(model, machines, filled, min_workers)
    members = [index for index, one in enumerate(weights) if index == 0 or one.attention + one.ffn > 0]
    plan = predict(model, _pick(filled, members), [weights[index] for index in members])
    if isinstance(plan, Infeasible):
        return plan
    out = SpareReason("shares", "its weight in --shares is 0")
    spare = {index: out for index in range(len(machines)) if index not in members}
    return Allocation(tuple(members), plan, ("as --shares says",) * len(members), spare)


def _fastest(
    model: ModelFacts, machines: Sequence[MachineFacts], filled: Sequence[MachineFacts], min_workers: int
) -> Allocation | Infeasible:
    bounds = [node_bound(model, min(index, 1), machine) for index, machine in enumerate(filled)]
    able = [index for index, bound in enumerate(bounds) if index == 0 or bound.limit > 0]
    if len(able) - 1 < min_workers:
        able = list(range(len(filled)))  # then refused below, with the numbers
    candidates = _Candidates(model, filled, bounds, min_workers)
    found = candidates.best_set(able)
    if found is None:
        refusal = predict(model, _pick(filled, able))
        if isinstance(refusal, Infeasible):
            return refusal
        raise InternalError("the planner's search missed a set of machines that holds the model")
    (members, plan), spare = found, {}
    for index in set(range(len(machines))).difference(members):
        times = candidates.least_step_s(sorted({*members, index})) or 0.0, plan.step_s
        spare[index] = candidates.why_out(index, times, len(able) - 1)
    total = sum(layers_bytes(model, share) for share in plan.shares)
    reasons = [
        candidates.why_in(members, rank, plan, total, assumed=machines[index].speed <= 0)
        for rank, index in enumerate(members)
    ]
    return Allocation(tuple(members), plan, tuple(reasons), spare)


@dataclass(frozen=True)
class _Candidates:
    model: ModelFacts
    machines: Sequence[MachineFacts]
    bounds: Sequence[Bound]
    min_workers: int

    def best_set(self, able: Sequence[int]) -> _Option | None:
        least = self.min_workers
        if len(able) <= _FEW:
            workers = able[1:]
            counts = range(least, len(workers) + 1)
            every = [[0, *chosen] for count in counts for chosen in combinations(workers, count)]
            return self._best_of(every, len(every))
        # Else the nearest workers of each count are tried, then changes of one machine at a time.
        nearest = sorted(able[1:], key=lambda index: (self.machines[index].round_trip_s, index))
        sets = [[0, *nearest[:count]] for count in range(least, len(nearest) + 1)]
        best = self._best_of(sets, _TRIES) or self._best_of(sets, len(sets))
        while best is not None:
            members = best[0]
            less = [[other for other in members if other != index] for index in members if index != 0]
            more = [[*members, index] for index in able if index not in members]
            near = self._best_of([*less, *more], _TRIES, best)
            if near is None or near is best:
                break
            best = near
        return best

    def _best_of(
        self, sets: Sequence[Sequence[int]], tries: int, best: _Option | None = None
    ) -> _Option | None:
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
            self.model, _pick(self.machines, members), [self.bounds[index] for index in members]
        )

    def _option(self, members: list[int]) -> _Option | None:
        plan = predict(self.model, _pick(self.machines, members))
        if len(members) - 1 < self.min_workers or isinstance(plan, Infeasible):
            return None
        shares = enumerate(plan.shares)
        busy = [rank for rank, share in shares if rank == 0 or any(share.axes.values())]
        if self.min_workers < len(busy) < len(members):
            members = [members[rank] for rank in busy]
            plan = without_idle(self.model, _pick(self.machines, members), plan, busy)
        return members, plan

    def why_in(self, members: Sequence[int], rank: int, plan: Plan, total: int, *, assumed: bool) -> str:
        """Explains a member's part. `assumed`: its speed was not measured."""
        node, limit, need = self.machines[members[rank]], "", plan.needs[rank]
        guess = " (assumed, not measured)" if assumed else ""
        by_speed = node.speed / sum(self.machines[member].speed for member in members)
        # Finds the limit that keeps the machine from the part that its speed alone would give it.
        for words, nbytes, alone in (
            ("free disk", node.free_disk_bytes, replace(node, memory_bytes=None)),
            ("memory", node.memory_bytes, replace(node, free_disk_bytes=None)),
        ):
            part = pinned_limit(self.model, rank, alone)
            if nbytes is not None and part < by_speed:
                by_speed, limit = part, f"; limited by {words} {format_bytes(nbytes)}"
        if need.streamed_bytes:
            limit = f"; {format_bytes(need.streamed_bytes)} of them stream from its disk"
        fraction = layers_bytes(self.model, plan.shares[rank]) / total
        return f"{format_bytes(node.speed)}/s of weights{guess}; computes {fraction:.0%} of the layers{limit}"

    def why_out(self, index: int, seconds: tuple[float, float], workers: int) -> SpareReason:
        """Explains why a machine has no part. `seconds`: with the machine, without it."""
        model, machine = self.model, self.machines[index]
        small = too_small(model, machine)
        if small is not None:
            return small
        if self.bounds[index].limit * max(model.shape.ffn_tiles, model.shape.experts) < 1:
            free = format_bytes(machine.free_disk_bytes or 0)
            why = f"its disk has {free} for weights, which is too little for any share"
            return SpareReason("no room", f"{why}: free some there, or start it again with another --cache")
        least_s, without_s = seconds
        trip = format_seconds(machine.round_trip_s)
        because = f"{model.exchanges} exchanges; a round trip takes {trip}"
        with_s = max(least_s, without_s)  # with whole units it is no faster
        return slower(with_s, without_s, because, workers)


def _cost(option: _Option) -> tuple[float, int]:
    return option[1].step_s, len(option[0])


def _pick(machines: Sequence[MachineFacts], members: Sequence[int]) -> list[MachineFacts]:
    return [machines[index] for index in members]


def slower(with_s: float, without_s: float, because: str, workers: int) -> SpareReason:
    """Says that a machine saves no time. `with_s` and `without_s` are seconds per token."""
    how = "slower" if with_s > without_s else "hardly faster"
    return SpareReason(
        "slower",
        f"answers would be {how} with it ({format_seconds(with_s)} instead of {format_seconds(without_s)} per token; "
        f"{because}); to use it anyway, start the master with --min-workers {workers}",
    )


def drained(name: str) -> SpareReason:
    return SpareReason(
        "drained",
        f"safe to switch off; 'tpiedge nodes drain {name} --undo' on the master's computer or a restart of its "
        "worker brings it back",
    )


def without_native(model: ModelFacts, isa: str) -> SpareReason | None:
    """Refuses a worker that lacks native kernels and needs them. Otherwise returns None."""
    if not model.needs_native or isa != NO_ISA:
        return None
    return SpareReason(
        "no room",
        "it has no native kernels, which int8 arithmetic, and keys and values in q8 and q4, need: on its computer, "
        "unset TPIEDGE_NATIVE, or install a C++ compiler and type 'make setup', or install a wheel of tpiedge",
    )


def too_small(model: ModelFacts, machine: MachineFacts) -> SpareReason | None:
    """Refuses a worker whose memory is too small for any part. Otherwise returns None."""
    shape, nothing = model.shape, Share(0)
    parts = [shape.share(Share(shape.group_size), nothing)]
    # The last tile may be a short one.
    parts += [shape.share(nothing, Share(tiles)[-1:]) for tiles in [shape.ffn_tiles] if tiles]
    parts += [shape.share(nothing, nothing, Share(tiles)[-1:]) for tiles in [shape.experts] if tiles]
    least = min(smallest_bytes(model, 1, share, machine) for share in parts)
    if machine.memory_bytes is None or machine.memory_bytes >= least:
        return None
    return SpareReason(
        "too small",
        f"it offers {format_bytes(machine.memory_bytes)}, but the least that works for {model.name} is "
        f"{format_least(least)}: start it again with --memory {format_least(least).replace(' ', '')} or more",
    )


def master_too_small(
    model: ModelFacts, machine: MachineFacts, weights: Sequence[ShareWeight] | None
) -> str | None:
    """Returns why the master's memory is too small, or None. `weights` are the weights of --shares."""
    nothing = model.shape.share(Share(0), Share(0))
    share = nothing if weights is None else partition(model.shape, weights)[0]
    least = smallest_bytes(model, 0, share, machine)
    if machine.memory_bytes is None or machine.memory_bytes >= least:
        return None
    part = "alone, whatever workers compute," if weights is None else "and its part of --shares"
    needed = format_least(least)
    return (
        f"the master may use {format_bytes(machine.memory_bytes)}, but its program and the LM head of "
        f"{model.name} {part} need {needed}: give --memory {needed.replace(' ', '')} or more"
    )
