"""Turns the present machines into assignments, by asking the planner."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tpiedge.master.assignments import Assignment, Assignments
from tpiedge.master.roster import Machine
from tpiedge.pack.share import NodeShare, Share
from tpiedge.planner import prediction
from tpiedge.planner.capacity import Allocation, SpareReason, allocate, slower, too_small, without_native
from tpiedge.planner.needs import Infeasible, ModelFacts, used_bytes
from tpiedge.planner.solve import ShareWeight
from tpiedge.units import counted

OWN_NAME = "master"


@dataclass
class NodePlacement:
    """Makes plans for the machines that are present. `own()` returns the master machine's offer. `weights`: the numbers
    of --shares, first the master's number, then one per worker in the order of admission. No plan is made until every
    number has a machine. Only a clearly faster plan replaces the serving plan."""

    model: ModelFacts
    own: Callable[[], prediction.MachineFacts]
    threads: int
    weights: tuple[ShareWeight, ...] | None = None
    min_workers: int = 0

    def __call__(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments:
        unfit = {
            one.name: without_native(self.model, one.offer.isa) or too_small(self.model, self._offered(one))
            for one in machines
        }
        spare = {name: reason for name, reason in unfit.items() if reason is not None}
        machines = tuple(one for one in machines if one.name not in spare)
        if self.weights is not None:
            wanted = len(self.weights) - 1
            if len(machines) < wanted:
                present = f"{len(machines)} of {counted(wanted, 'worker')} of --shares here"
                return Assignments((), spare, reason=f"{present}: waiting for the rest")
            beyond = SpareReason(
                "shares", "others came first, and the master's --shares have no part for more"
            )
            named = {machine.name: machine for machine in machines}
            machines = tuple(named.pop(one.name) for one in fill_slots(wanted, machines))
            spare |= dict.fromkeys(named, beyond)
        best = self._allocate(machines)
        if isinstance(best, Infeasible):
            return Assignments((), spare, reason=best.reason)
        there = tuple(one for one in machines if one.name in serving)
        kept = self._kept(there, serving, best, fewer=len(there) < len(machines))
        if kept is None:
            return self._assignments_of(best, machines, spare)
        workers = len(machines) - sum(one.kind == "no room" for one in best.spare.values())
        seconds = best.plan.step_s, kept.plan.step_s
        little = slower(*seconds, "not worth restarting every node", workers)
        reasons = {one.name: best.spare.get(rank, little) for rank, one in enumerate(machines, 1)}
        out = {name: why for name, why in reasons.items() if name not in serving}
        return self._assignments_of(kept, there, spare | out)

    def _kept(
        self, there: tuple[Machine, ...], serving: tuple[str, ...], best: Allocation, *, fewer: bool
    ) -> Allocation | None:
        """Returns the serving machines' plan if it is nearly as fast as `best`."""
        if self.weights is not None or not serving or not fewer or len(there) < len(serving):
            return None
        kept = self._allocate(there)
        if isinstance(kept, Infeasible) or kept.plan.step_s > 1.1 * best.plan.step_s:
            return None
        return kept

    def _allocate(self, machines: tuple[Machine, ...]) -> Allocation | Infeasible:
        offered = [self._offered(machine) for machine in machines]
        return allocate(self.model, [self.own(), *offered], self.weights, self.min_workers)

    def _offered(self, machine: Machine) -> prediction.MachineFacts:
        offer, link = machine.offer, machine.link
        return prediction.MachineFacts(
            name=machine.name,
            speed=offer.capacity.speed(self.model.int8) / machine.slowdown,
            memory_bytes=offer.memory_bytes,
            free_disk_bytes=offer.free_disk_bytes,
            round_trip_s=link.round_trip_s if link is not None else 0.0,
            link_bytes_per_s=link.bytes_per_s if link is not None else None,
            disk_bytes_per_s=offer.disk_bytes_per_s,
            keeping=offer.keeping,
            keep_bytes=offer.keep_bytes,
            park_bytes=offer.park_bytes,
        )

    def _assignments_of(
        self, found: Allocation, machines: tuple[Machine, ...], spare: dict[str, SpareReason]
    ) -> Assignments:
        assignments = []
        parts = zip(found.members, found.plan.shares, found.plan.needs, found.reasons, strict=True)
        for index, share, need, why in parts:
            machine = machines[index - 1] if index else None
            facts = self.own() if machine is None else self._offered(machine)
            part = Assignment(
                machine="",
                share=share,
                threads=self.threads,
                weight_bytes=need.weight_bytes,
                weights=need.weights,
                planned_bytes=need.total_bytes,
                why=why,
                speed=facts.speed,
                ffn_s=_ffn_seconds(self.model, share, facts.speed),
                keeps=facts.keep_bytes > 0,
                parks=facts.park_bytes > 0,
            )
            if machine is not None:
                threads, host = min(max(1, machine.offer.threads), 1024), machine.offer.host
                slowdown = machine.slowdown
                part = replace(part, machine=machine.name, threads=threads, host=host, slowdown=slowdown)
            assignments.append(part)
        left_out = {machines[index - 1].name: why for index, why in found.spare.items()}
        return Assignments(tuple(assignments), left_out | spare, found.plan.step_s)


def fill_slots(count: int, machines: Sequence[Machine]) -> list[Machine]:
    """Returns the machine of each slot: its owner or, if that is absent, a machine that owns no slot."""
    owners = {one.place: one for one in machines if one.place < count}
    others = (one for one in machines if one.place >= count)
    return [owners.get(slot) or next(others) for slot in range(count)]


def _ffn_seconds(model: ModelFacts, share: NodeShare, speed: float) -> float:
    own = model.shape.share(Share(0), share.along("ffn"), share.along("experts"))
    nbytes = used_bytes(model, own) / (model.exchanges / 2)
    if not nbytes or speed <= 0:
        return 0.0
    # The fixed cost is 0.1 to 0.5 MB of weights (measured on 0.04 to 0.4 MB).
    return (nbytes + (1 << 18)) / speed
