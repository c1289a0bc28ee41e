"""From who is there to who does what: the planner's answer, as the master's control thread wants it."""

from dataclasses import dataclass

from tpiedge.nodes.roster import Machine
from tpiedge.nodes.session import Seat
from tpiedge.planner import prediction
from tpiedge.planner.capacity import Allotment, allocate
from tpiedge.planner.partition import Weight
from tpiedge.planner.prediction import Demand
from tpiedge.planner.solve import Infeasible

__all__ = ["OWN_NAME", "Seating"]

OWN_NAME = "master"
_MAX_THREADS = 1024


@dataclass(frozen=True)
class Seating:
    """A pure function of the machines that are present.

    `own` is the master's machine with `threads` threads. With `weights` (of the master first, then of the workers in
    the order in which they came) the plan waits for as many machines; more are spare.
    """

    demand: Demand
    own: prediction.Machine
    threads: int
    weights: tuple[Weight, ...] | None = None

    def __call__(self, machines: tuple[Machine, ...]) -> tuple[Seat, ...] | str:
        """The seats, rank 0 first, or one line that says why there are none."""
        if self.weights is not None:
            wanted = len(self.weights) - 1
            if len(machines) < wanted:
                return f"{len(machines)} of the {wanted} workers of --shares are here: waiting for the others"
            machines = machines[:wanted]
        found = allocate(self.demand, [self.own, *map(_offered, machines)], self.weights)
        if isinstance(found, Infeasible):
            return found.reason
        seated = sorted(
            (allotment for allotment in found.allotments if allotment.rank is not None),
            key=lambda allotment: allotment.rank or 0,
        )
        threads = {machine.name: min(max(1, machine.offer.threads), _MAX_THREADS) for machine in machines}
        return tuple(self._seat(allotment, threads) for allotment in seated)

    def _seat(self, allotment: Allotment, threads: dict[str, int]) -> Seat:
        own = allotment.rank == 0
        return Seat(
            machine="" if own else allotment.name,
            share=allotment.share,
            threads=self.threads if own else threads[allotment.name],
            weight_bytes=allotment.need.weight_bytes if allotment.need is not None else 0,
            why=allotment.reason,
        )


def _offered(machine: Machine) -> prediction.Machine:
    offer, link = machine.offer, machine.link
    return prediction.Machine(
        name=machine.name,
        weight_bytes_per_s=offer.capacity.weight_bytes_per_s,
        memory_bytes=offer.memory_bytes,
        free_disk_bytes=offer.free_disk_bytes,
        round_trip_s=link.round_trip_s if link is not None else 0.0,
        link_bytes_per_s=link.bytes_per_s if link is not None else None,
    )
