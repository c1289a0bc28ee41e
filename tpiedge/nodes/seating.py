"""From who is there to who does what: the planner's answer, as the master's control thread wants it."""

from dataclasses import dataclass

from tpiedge.nodes.roster import Machine
from tpiedge.nodes.seats import Arrangement, Seat
from tpiedge.planner import prediction
from tpiedge.planner.capacity import Allocation, Allotment, allocate
from tpiedge.planner.needs import Infeasible, NodeNeed
from tpiedge.planner.partition import Weight
from tpiedge.planner.prediction import Demand
from tpiedge.wire.epochs import Offer

__all__ = ["OWN_NAME", "Seating"]

OWN_NAME = "master"
_MAX_THREADS = 1024
_NOTHING = NodeNeed(0, 0, 0)
#: How many times as long a step may take before a plan that serves is given up.
_WORTH = 1.1


@dataclass(frozen=True)
class Seating:
    """A pure function of the machines that are present.

    `own` is the master's machine with `threads` threads. With `weights` (of the master first, then of the workers in
    the order in which they came) the plan waits for as many machines; more are spare.

    A plan that serves is only given up for one that is clearly faster: a change costs every node a new start.
    """

    demand: Demand
    own: prediction.Machine
    threads: int
    weights: tuple[Weight, ...] | None = None

    def __call__(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Arrangement | str:
        """The arrangement, or one line that says why there is none. `serving`: the workers of the present one."""
        spare: dict[str, str] = {}
        if self.weights is not None:
            wanted = len(self.weights) - 1
            if len(machines) < wanted:
                return f"{len(machines)} of the {wanted} workers of --shares are here: waiting for the others"
            spare = {machine.name: "beyond the machines of --shares" for machine in machines[wanted:]}
            machines = machines[:wanted]
        found = self._allocate(machines)
        if isinstance(found, Infeasible):
            return found.reason
        kept = tuple(machine for machine in machines if machine.name in serving)
        if self.weights is None and serving and len(kept) == len(serving) < len(machines):
            present = self._allocate(kept)
            if isinstance(present, Allocation) and (
                present.prediction.step_s <= _WORTH * found.prediction.step_s
            ):
                others = set(machines) - set(kept)
                spare = dict.fromkeys((machine.name for machine in others), "the plan is as fast without it")
                found = present
        return self._arrangement(found, machines, spare)

    def _allocate(self, machines: tuple[Machine, ...]) -> Allocation | Infeasible:
        offered = [_offered(machine, self.demand.model.quantised) for machine in machines]
        return allocate(self.demand, [self.own, *offered], self.weights)

    def _arrangement(
        self, found: Allocation, machines: tuple[Machine, ...], spare: dict[str, str]
    ) -> Arrangement:
        seated = sorted(
            (allotment for allotment in found.allotments if allotment.rank is not None),
            key=lambda allotment: allotment.rank or 0,
        )
        left_out = {one.name: one.reason for one in found.allotments if one.rank is None}
        offers = {machine.name: machine.offer for machine in machines}
        seats = tuple(self._seat(allotment, offers.get(allotment.name)) for allotment in seated)
        return Arrangement(seats, spare | left_out)

    def _seat(self, allotment: Allotment, offer: Offer | None) -> Seat:
        """`offer` is None for the master's own."""
        need = allotment.need or _NOTHING
        quantised = self.demand.model.quantised
        return Seat(
            machine="" if offer is None else allotment.name,
            share=allotment.share,
            threads=self.threads if offer is None else min(max(1, offer.threads), _MAX_THREADS),
            weight_bytes=need.weight_bytes,
            weights=need.weights,
            planned_bytes=need.total_bytes,
            why=allotment.reason,
            host="" if offer is None else offer.host,
            memory_bytes=(self.own.memory_bytes or 0) if offer is None else offer.memory_bytes,
            speed=self.own.weight_bytes_per_s if offer is None else offer.capacity.speed(quantised),
        )


def _offered(machine: Machine, quantised: bool) -> prediction.Machine:
    """As the planner sees it for a model whose layers are `quantised`."""
    offer, link = machine.offer, machine.link
    return prediction.Machine(
        name=machine.name,
        weight_bytes_per_s=offer.capacity.speed(quantised),
        memory_bytes=offer.memory_bytes,
        free_disk_bytes=offer.free_disk_bytes,
        round_trip_s=link.round_trip_s if link is not None else 0.0,
        link_bytes_per_s=link.bytes_per_s if link is not None else None,
        disk_bytes_per_s=offer.disk_bytes_per_s,
        keeping=offer.keeping,
    )
