"""Where the master's nodes are placed, by how much memory its own machine gives now."""

from collections.abc import Sequence
from dataclasses import replace

from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.placement import NodePlacement
from tpiedge.master.roster import Machine
from tpiedge.pack.share import NodeShare
from tpiedge.planner.arrangement import Arrangement

__all__ = ["PlacementOfNow"]


class PlacementOfNow:
    """The placement function of now, which is pure; another one is made of it when `give` is called. One thread calls
    that, any the rest."""

    def __init__(self, first: NodePlacement) -> None:
        self.now = first

    def give(self, memory_bytes: int) -> None:
        """The master's machine gives so much from now on."""
        self.now = replace(self.now, own=replace(self.now.own, memory_bytes=memory_bytes))

    def __call__(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments | NoPlan:
        return self.now(machines, serving)

    def arrangement(self, found: Assignments, machines: tuple[Machine, ...]) -> Arrangement:
        """As NodePlacement.arrangement."""
        return self.now.arrangement(found, machines)

    def placed(
        self,
        found: Assignments,
        machines: tuple[Machine, ...],
        line: Arrangement,
        order: Sequence[int],
        shares: Sequence[NodeShare],
    ) -> Assignments | None:
        """As NodePlacement.placed."""
        return self.now.placed(found, machines, line, order, shares)
