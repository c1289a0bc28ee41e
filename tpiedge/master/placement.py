"""Turns the present machines into assignments, by asking the planner."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tpiedge.master.assignments import Assignment, Assignments, NoPlan
from tpiedge.master.roster import Machine
from tpiedge.pack.share import NodeShare, Share
from tpiedge.planner import prediction
from tpiedge.planner.capacity import Allocation, SpareReason, allocate, slower, too_small, without_native
from tpiedge.planner.needs import Infeasible, ModelFacts, NodeNeed, layer_bytes
from tpiedge.planner.prediction import Demand
from tpiedge.planner.solve import ShareWeight
from tpiedge.units import counted

OWN_NAME = "master"


@dataclass
class NodePlacement:
    """A function of the machines that are present.

    `own` says what the master's machine, with `threads` threads, gives now. `weights` gives relative shares, the
    master's first, then the workers' in the order in which they were let in; the plan then waits for that many
    machines, and more are spare.

    The serving plan is replaced only by one that is clearly faster, because a change restarts every node.
    """

    demand: Demand
    own: Callable[[], prediction.MachineFacts]
    threads: int
    weights: tuple[ShareWeight, ...] | None = None

    def __call__(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments | NoPlan:
        """The assignments, or why there are none. `serving`: the workers of the serving plan."""
        found_unfit = {
            one.name: without_native(self.demand, one.offer.isa) or too_small(self.demand, self._offered(one))
            for one in machines
        }
        unfit = {name: reason for name, reason in found_unfit.items() if reason is not None}
        found = self._of_fit(tuple(one for one in machines if one.name not in unfit), serving)
        return replace(found, spare={**unfit, **found.spare})

    def _of_fit(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments | NoPlan:
        """The assignments of machines that hold some share, or why there are none."""
        spare: dict[str, SpareReason] = {}
        if self.weights is not None:
            wanted = len(self.weights) - 1
            if len(machines) < wanted:
                present = f"{len(machines)} of {counted(wanted, 'worker')} of --shares here"
                return NoPlan(f"{present}: waiting for the rest")
            beyond = SpareReason(
                "shares", "others came first, and the master's --shares have no part for more"
            )
            named = {machine.name: machine for machine in machines}
            machines = tuple(named.pop(one.name) for one in seated(wanted, machines))
            spare = dict.fromkeys(named, beyond)
        best = self._allocate(machines)
        if isinstance(best, Infeasible):
            return NoPlan(best.reason, spare)
        there = tuple(one for one in machines if one.name in serving)
        kept = self._kept(there, serving, best, fewer=len(there) < len(machines))
        if kept is None:
            return self._assignments_of(best, machines, spare)
        workers = len(machines) - sum(one.kind == "no room" for one in best.spare.values())
        seconds = best.prediction.step_s, kept.prediction.step_s
        little = slower(*seconds, "not worth starting every node anew", workers)
        reasons = {one.name: best.spare.get(rank, little) for rank, one in enumerate(machines, 1)}
        out = {name: why for name, why in reasons.items() if name not in serving}
        return self._assignments_of(kept, there, spare | out)

    def _kept(
        self, there: tuple[Machine, ...], serving: tuple[str, ...], best: Allocation, *, fewer: bool
    ) -> Allocation | None:
        """The serving plan, if all its workers are `there`, they are `fewer` than there are, and its step takes no more
        than 1.1 times as long as that of the best one."""
        if self.weights is not None or not serving or not fewer or len(there) < len(serving):
            return None
        kept = self._allocate(there)
        if isinstance(kept, Infeasible) or kept.prediction.step_s > 1.1 * best.prediction.step_s:
            return None
        return kept

    def _allocate(self, machines: tuple[Machine, ...]) -> Allocation | Infeasible:
        offered = [self._offered(machine) for machine in machines]
        return allocate(self.demand, [self.own(), *offered], self.weights)

    def _offered(self, machine: Machine) -> prediction.MachineFacts:
        offer, link = machine.offer, machine.link
        return prediction.MachineFacts(
            name=machine.name,
            speed=self._speed(machine),
            memory_bytes=offer.memory_bytes,
            free_disk_bytes=offer.free_disk_bytes,
            round_trip_s=link.round_trip_s if link is not None else 0.0,
            link_bytes_per_s=link.bytes_per_s if link is not None else None,
            disk_bytes_per_s=offer.disk_bytes_per_s,
            keeping=offer.keeping,
        )

    def _assignments_of(
        self, found: Allocation, machines: tuple[Machine, ...], spare: dict[str, SpareReason]
    ) -> Assignments:
        parts = zip(found.members, found.plan.shares, found.plan.needs, found.reasons, strict=True)
        assignments = tuple(
            self._assignment(share, need, why, machines[index - 1] if index else None)
            for index, share, need, why in parts
        )
        left_out = {machines[index - 1].name: why for index, why in found.spare.items()}
        return Assignments(assignments, left_out | spare, found.prediction.step_s)

    def _speed(self, machine: Machine) -> float:
        return machine.offer.capacity.speed(self.demand.model.quantised) / machine.slowdown

    def _assignment(self, share: NodeShare, need: NodeNeed, why: str, machine: Machine | None) -> Assignment:
        """One machine's assignment; `machine` is None for the master's own."""
        offer = None if machine is None else machine.offer
        speed = self.own().speed if machine is None else self._speed(machine)
        return Assignment(
            machine="" if machine is None else machine.name,
            share=share,
            threads=self.threads if offer is None else min(max(1, offer.threads), 1024),
            weight_bytes=need.weight_bytes,
            weights=need.weights,
            planned_bytes=need.total_bytes,
            why=why,
            host="" if offer is None else offer.host,
            speed=speed,
            slowdown=1.0 if machine is None else machine.slowdown,
            ffn_s=_ffn_seconds(self.demand.model, share, speed),
        )


def seated(count: int, machines: Sequence[Machine]) -> list[Machine]:
    """Who has each of `count` parts of --shares, of at least as many machines in the order in which they were let in:
    its owner, who was let in at that place, or else the first of those that own none."""
    owners = {one.place: one for one in machines if one.place < count}
    others = (one for one in machines if one.place >= count)
    return [owners.get(seat) or next(others) for seat in range(count)]


def _ffn_seconds(model: ModelFacts, share: NodeShare, speed: float) -> float:
    """As Assignment.ffn_s. Beside its weights a block costs as much as reading 0.1 to 0.5 MB of them, as measured with
    parts of 0.04 to 0.4 MB: parts of small models hardly differ for it, however different they are."""
    if not share.ffn or speed <= 0:
        return 0.0
    return (layer_bytes(model, NodeShare(Share(0, 0), share.ffn)) + (1 << 18)) / speed
