"""Gives the ranks of every plan the order in which the machines' disks lack the fewest bytes.

Laws:
1. A plan that is only another order of what serves, or is about to, keeps the order of that: what is on disks leads to
   no other plan.
2. Otherwise the order that was given before for the same machines and amounts is kept, unless another lacks less. So a
   plan that was made for a loss that may come, and has been stocked, is the one that is made when it comes.
3. The machines of the plan that served last keep their order, newcomers among them, unless another lacks less: what is
   stocked for one loss is of use for the next.
4. The planner is asked no other question than without this: what it has answered before is good whatever is on disks.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from tpiedge.master.assignments import Assignment, Assignments, NoPlan
from tpiedge.master.planning import PlaceNodes
from tpiedge.master.roster import Machine
from tpiedge.pack.held import HeldUnits
from tpiedge.planner.arrangement import Arrangement
from tpiedge.wire.limits import MAX_NODES

__all__ = ["Arranger", "Arranges"]

#: Orders that are remembered: of the plans for the loss of each machine, twice over.
_MOST: Final = 2 * MAX_NODES

_Amounts: TypeAlias = frozenset[tuple[str, int, int]]
"""Of each machine the name and its numbers of units, whatever their places."""


class Arranges(Protocol):
    """What orders a plan may have; pure."""

    def arrangement(self, found: Assignments, machines: tuple[Machine, ...]) -> Arrangement: ...

    def in_order(self, found: Assignments, line: Arrangement, order: Sequence[int]) -> Assignments | None: ...


class Arranger:
    """For the control thread. `under_way`: what is about to serve, then what serves."""

    def __init__(self, arranges: Arranges, under_way: Callable[[], Sequence[tuple[Assignment, ...]]]) -> None:
        self._arranges = arranges
        self._under_way = under_way
        #: The machines of what served last, in the order of their ranks.
        self._last: tuple[str, ...] = ()
        #: The machines in the order that was given, and what was on their disks then.
        self._given: dict[_Amounts, tuple[tuple[str, ...], tuple[HeldUnits, ...]]] = {}

    def over(self, plan: PlaceNodes) -> PlaceNodes:
        """`plan` with its ranks in such orders."""

        def arranged(machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments | NoPlan:
            found = plan(machines, serving)
            return found if isinstance(found, NoPlan) else self._arranged(found, machines)

        return arranged

    def _arranged(self, found: Assignments, machines: tuple[Machine, ...]) -> Assignments:
        amounts, names = _amounts(found.assignments), [one.machine for one in found.assignments]
        line = self._arranges.arrangement(found, machines)
        for plan in self._under_way():
            self._last = tuple(one.machine for one in plan)
            if _amounts(plan) == amounts:
                same = self._arranges.in_order(found, line, [names.index(name) for name in self._last])
                if same is not None:
                    return same
        disks = {machine.name: machine.held for machine in machines}
        held = tuple(disks[name] for name in sorted(names) if name)
        given, held_then = self._given.pop(amounts, ((), None))
        if held != held_then:
            tried = [order for order in (given, self._last) if order]
            ranks = line.nearest([[names.index(name) for name in order if name in names] for order in tried])
            given = tuple(names[rank] for rank in ranks)
        if len(self._given) >= _MOST:
            del self._given[next(iter(self._given))]
        self._given[amounts] = given, held
        return self._arranges.in_order(found, line, [names.index(name) for name in given]) or found


def _amounts(assignments: tuple[Assignment, ...]) -> _Amounts:
    return frozenset((one.machine, len(one.share.attention), len(one.share.ffn)) for one in assignments)
