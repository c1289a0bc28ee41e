"""Turns the present machines into assignments, by asking the planner."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tpiedge.master.assignments import Assignment, Assignments, NoPlan
from tpiedge.master.roster import Machine
from tpiedge.master.seats import seated
from tpiedge.pack.held import HeldUnits
from tpiedge.pack.share import NodeShare, Share
from tpiedge.planner import prediction
from tpiedge.planner.arrangement import Arrangement, Part
from tpiedge.planner.capacity import Allocation, Allotment, allocate
from tpiedge.planner.needs import Infeasible, ModelFacts, NodeNeed, layer_bytes
from tpiedge.planner.partition import ShareWeight, partition
from tpiedge.planner.prediction import Demand
from tpiedge.planner.reasons import SpareReason, slower, too_small, too_small_for, why_in, without_native
from tpiedge.units import counted

OWN_NAME = "master"
_MAX_THREADS = 1024
_NOTHING = NodeNeed(0, 0, 0)
#: The serving plan is kept unless its step takes more than this many times as long as the best plan's.
_WORTH = 1.1
#: What a block costs beside its weights, in those that are read meanwhile: 0.1 to 0.5 MB, as measured with parts of
#: 0.04 to 0.4 MB. Parts of small models hardly differ for it, however different they are.
_BESIDE_WEIGHTS = 1 << 18


@dataclass
class NodePlacement:
    """A function of the machines that are present and the memory that the master's own gives.

    `own` is the master's machine with `threads` threads. `weights` gives relative shares, the master's first, then the
    workers', who have them as `seats` says, unless they offer too little for them; the plan then waits for that many
    machines, and more are spare.

    The serving plan is replaced only by one that is clearly faster, because a change restarts every node.
    """

    demand: Demand
    own: prediction.MachineFacts
    threads: int
    weights: tuple[ShareWeight, ...] | None = None

    def __call__(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments | NoPlan:
        """The assignments, or why there are none. `serving`: the workers of the serving plan."""
        unfit = self._unfit(machines)
        found = self._of_fit(tuple(one for one in machines if one.name not in unfit), serving)
        return replace(found, spare={**unfit, **found.spare})

    def give(self, memory_bytes: int) -> None:
        """The master's machine gives so much from now on."""
        self.own = replace(self.own, memory_bytes=memory_bytes)

    def arrangement(self, found: Assignments, machines: tuple[Machine, ...]) -> Arrangement:
        """What orders and shares the machines of a plan may have, given what is on their disks. With `weights` each
        keeps its amount."""
        workers = _workers(found, machines)
        nodes = prediction.node_facts([self.own, *map(self._offered, workers)])
        held = [HeldUnits(), *(worker.held for worker in workers)]
        shares = [one.share for one in found.assignments]
        parts = list(map(Part, nodes, shares, held))
        return Arrangement(
            self.demand.model, self.demand.capacity_tokens, parts, movable=self.weights is None
        )

    def placed(
        self,
        found: Assignments,
        machines: tuple[Machine, ...],
        line: Arrangement,
        order: Sequence[int],
        shares: Sequence[NodeShare],
    ) -> Assignments | None:
        """The plan with its machines in an order of `line`, its arrangement, and with these shares; None where they do
        not fit so."""
        needs = line.needs(order, shares)
        if needs is None:
            return None
        model, facts = self.demand.model, [self.own, *map(self._offered, _workers(found, machines))]
        whole = sum(layer_bytes(model, share) for share in shares)
        filled, ranks = prediction.with_speeds(facts), range(len(facts))

        def placed(rank: int, share: NodeShare, need: NodeNeed) -> Assignment:
            one = found.assignments[rank]
            why, fraction = one.why, layer_bytes(model, share) / whole
            if self.weights is None:
                why = why_in(self.demand, facts[rank], filled, ranks, rank, fraction, need)
            return replace(
                one,
                share=share,
                weight_bytes=need.weight_bytes,
                weights=need.weights,
                planned_bytes=need.total_bytes,
                why=why,
                ffn_s=_ffn_seconds(model, share, one.speed),
            )

        step_s = found.step_s + line.seconds(order, shares) - line.seconds(line.own)
        return replace(found, assignments=tuple(map(placed, order, shares, needs)), step_s=step_s)

    def _unfit(self, machines: tuple[Machine, ...]) -> dict[str, SpareReason]:
        """The machines that lack native kernels, or whose memory holds no share at all."""
        found = {
            one.name: without_native(self.demand, one.offer.isa) or too_small(self.demand, self._offered(one))
            for one in machines
        }
        return {name: reason for name, reason in found.items() if reason is not None}

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
            machines = tuple(named.pop(name) for name in self._seated(machines, wanted))
            spare = dict.fromkeys(named, beyond) | self._unseated(named.values())
        best = self._allocate(machines)
        if isinstance(best, Infeasible):
            return NoPlan(best.reason, spare, wants_memory=self._wants_memory(machines))
        kept = self._kept(machines, serving, best)
        if kept is None:
            return self._assignments_of(best, machines, spare)
        return self._assignments_of(kept, machines, spare | _not_worth(best, kept))

    def _seated(self, machines: tuple[Machine, ...], wanted: int) -> tuple[str, ...]:
        """The machine of each worker's part of --shares; where not all parts can be held, as if they could, so that the
        planner names what is lacking."""
        claims = {one.name: one.claim for one in machines}
        offered = {one.name: self._offered(one) for one in machines}
        found = seated(wanted, claims, lambda name, seat: self._too_small(offered[name], seat) is None)
        return found if all(found) else seated(wanted, claims)

    def _unseated(self, machines: Iterable[Machine]) -> dict[str, SpareReason]:
        """Why each of these has not the part of --shares that is its own."""
        found = {
            one.name: self._too_small(self._offered(one), one.claim.seat)
            for one in machines
            if one.claim is not None
        }
        return {name: why for name, why in found.items() if why is not None}

    def _too_small(self, machine: prediction.MachineFacts, seat: int) -> SpareReason | None:
        """Why the worker cannot have that part of --shares; None where it can."""
        weights = self.weights or ()
        if seat + 1 >= len(weights) or weights[seat + 1] == ShareWeight(0, 0):
            return None
        return too_small_for(self.demand, machine, partition(self.demand.model.shape, weights)[seat + 1])

    def _kept(
        self, machines: tuple[Machine, ...], serving: tuple[str, ...], best: Allocation
    ) -> Allocation | None:
        """The serving plan, if it is complete, leaves machines out, and is hardly slower than the best one."""
        there = tuple(machine for machine in machines if machine.name in serving)
        if self.weights is not None or not len(there) == len(serving) < len(machines) or not serving:
            return None
        kept = self._allocate(there)
        if isinstance(kept, Infeasible) or kept.prediction.step_s > _WORTH * best.prediction.step_s:
            return None
        return kept

    def _allocate(self, machines: tuple[Machine, ...]) -> Allocation | Infeasible:
        offered = [self._offered(machine) for machine in machines]
        return allocate(self.demand, [self.own, *offered], self.weights)

    def _wants_memory(self, machines: tuple[Machine, ...]) -> bool:
        """As of NoPlan, of machines that have none."""
        roomy = replace(self, own=replace(self.own, memory_bytes=None))
        return not isinstance(roomy._allocate(machines), Infeasible)

    def _offered(self, machine: Machine) -> prediction.MachineFacts:
        """The machine's numbers for the planner."""
        offer, link = machine.offer, machine.link
        return prediction.MachineFacts(
            name=machine.name,
            weight_bytes_per_s=self._speed(machine),
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
        assigned = sorted(
            (allotment for allotment in found.allotments if allotment.rank is not None),
            key=lambda allotment: allotment.rank or 0,
        )
        named = {machine.name: machine for machine in machines}
        assignments = tuple(self._assignment(allotment, named.get(allotment.name)) for allotment in assigned)
        seats = () if self.weights is None else tuple(named)
        return Assignments(assignments, _left_out(found) | spare, found.prediction.step_s, seats)

    def _speed(self, machine: Machine) -> float:
        return machine.offer.capacity.speed(self.demand.model.quantised) / machine.slowdown

    def _assignment(self, allotment: Allotment, machine: Machine | None) -> Assignment:
        """One machine's assignment; `machine` is None for the master's own."""
        need = allotment.need or _NOTHING
        offer = None if machine is None else machine.offer
        speed = self.own.weight_bytes_per_s if machine is None else self._speed(machine)
        return Assignment(
            machine="" if offer is None else allotment.name,
            share=allotment.share,
            threads=self.threads if offer is None else min(max(1, offer.threads), _MAX_THREADS),
            weight_bytes=need.weight_bytes,
            weights=need.weights,
            planned_bytes=need.total_bytes,
            why=allotment.reason,
            host="" if offer is None else offer.host,
            memory_bytes=(self.own.memory_bytes or 0) if offer is None else offer.memory_bytes,
            speed=speed,
            slowdown=1.0 if machine is None else machine.slowdown,
            ffn_s=_ffn_seconds(self.demand.model, allotment.share, speed),
        )


def _workers(found: Assignments, machines: tuple[Machine, ...]) -> list[Machine]:
    """The machines of a plan but the master's own, by rank."""
    named = {machine.name: machine for machine in machines}
    return [named[one.machine] for one in found.assignments[1:]]


def _ffn_seconds(model: ModelFacts, share: NodeShare, speed: float) -> float:
    """As Assignment.ffn_s."""
    if not share.ffn or speed <= 0:
        return 0.0
    return (layer_bytes(model, NodeShare(Share(0, 0), share.ffn)) + _BESIDE_WEIGHTS) / speed


def _left_out(found: Allocation) -> dict[str, SpareReason]:
    """Why each machine that the planner left out was."""
    return {one.name: SpareReason(one.kind, one.reason) for one in found.allotments if one.kind is not None}


def _not_worth(best: Allocation, kept: Allocation) -> dict[str, SpareReason]:
    """Why the machines that are not in the `kept` plan are spare: most of them would be in the `best` one, too late."""
    workers = sum(one.kind != "no room" for one in best.allotments) - 1
    little = slower(
        best.prediction.step_s, kept.prediction.step_s, "not worth starting every node anew", workers
    )
    members = {one.name for one in kept.allotments}
    joined = {one.name: little for one in best.allotments if one.name not in members}
    return joined | {name: why for name, why in _left_out(best).items() if name not in members}
