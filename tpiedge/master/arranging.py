"""Gives the machines of every plan the places in which their disks lack the fewest bytes: an order of ranks, and
borders between them that make no step longer.

Laws:
1. A plan that is to serve, or serves, stays as it is while the planner's answer is the one that it was made from: what
   is on disks leads to no other plan.
2. Otherwise what was given before for the same answer is kept, unless something else lacks less. So a plan that was
   made for a loss that may come, and has been stocked, is the one that is made when it comes.
3. The machines of the plan that served last keep their order, newcomers among them, unless another lacks less: what is
   stocked for one loss is of use for the next.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from tpiedge.master.assignments import Assignment, Assignments, NoPlan
from tpiedge.master.foresight import PlaceNodes
from tpiedge.master.roster import Machine
from tpiedge.pack.held import HeldUnits
from tpiedge.pack.share import NodeShare
from tpiedge.planner.arrangement import Arrangement
from tpiedge.planner.capacity import MOST_MACHINES

#: Answers of the planner for which is remembered what was given: of the loss of each machine, twice over.
_MOST: Final = 2 * MOST_MACHINES

_Amounts: TypeAlias = frozenset[tuple[str, int, int]]
"""Of each machine the name and its numbers of units, whatever their places."""
_Places: TypeAlias = tuple[tuple[str, NodeShare], ...]
"""By rank, each machine's name and share."""


class Arranges(Protocol):
    """What orders and shares a plan may have; pure."""

    def arrangement(self, found: Assignments, machines: tuple[Machine, ...]) -> Arrangement: ...

    def placed(
        self,
        found: Assignments,
        machines: tuple[Machine, ...],
        line: Arrangement,
        order: Sequence[int],
        shares: Sequence[NodeShare],
    ) -> Assignments | None: ...


class Arranger:
    """For the control thread. `under_way`: what is about to serve, then what serves."""

    def __init__(self, arranges: Arranges, under_way: Callable[[], Sequence[tuple[Assignment, ...]]]) -> None:
        self._arranges = arranges
        self._under_way = under_way
        #: The machines of what served last, in the order of their ranks.
        self._last: tuple[str, ...] = ()
        #: What was given for an answer of the planner, and what was on the machines' disks then.
        self._given: dict[_Amounts, tuple[_Places, tuple[HeldUnits, ...] | None]] = {}

    def over(self, plan: PlaceNodes) -> PlaceNodes:
        """`plan` with its machines in such places."""

        def arranged(machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments | NoPlan:
            found = plan(machines, serving)
            return found if isinstance(found, NoPlan) else self._arranged(found, machines)

        return arranged

    def _arranged(self, found: Assignments, machines: tuple[Machine, ...]) -> Assignments:
        amounts, ranks = _amounts(found.assignments), _ranks(found)
        line = self._arranges.arrangement(found, machines)

        def placed(places: _Places) -> Assignments | None:
            order, shares = [ranks[name] for name, _ in places], [share for _, share in places]
            return self._arranges.placed(found, machines, line, order, shares)

        given, held_then = self._given.pop(amounts, ((), None))
        for plan in self._under_way():
            places = tuple((one.machine, one.share) for one in plan)
            self._last = _names(places)
            if (given and places == given) or _amounts(plan) == amounts:
                same = placed(places)
                if same is not None:
                    self._remember(amounts, places, held_then)
                    return same
        disks = {machine.name: machine.held for machine in machines}
        held = tuple(disks[name] for name in sorted(ranks) if name)
        kept = placed(given) if held == held_then else None  # memory may have become less, too
        if kept is None:
            given = self._best(line, ranks, given)
        self._remember(amounts, given, held)
        return kept or placed(given) or found

    def _best(self, line: Arrangement, ranks: dict[str, int], given: _Places) -> _Places:
        """What lacks the fewest bytes; of equals what was `given`."""
        tried = [names for names in (_names(given), self._last) if names]
        order = line.nearest([[ranks[name] for name in names if name in ranks] for names in tried])
        shares = line.moved(order)
        if given:
            old_order, old_shares = [ranks[name] for name, _ in given], [share for _, share in given]
            fits = line.needs(old_order, old_shares) is not None
            if fits and line.lacking(old_order, old_shares) <= line.lacking(order, shares):
                return given
        names = list(ranks)
        return tuple((names[rank], share) for rank, share in zip(order, shares, strict=True))

    def _remember(self, amounts: _Amounts, given: _Places, held: tuple[HeldUnits, ...] | None) -> None:
        """As the newest. With other disks than those that were `held` then, it is looked at again."""
        if len(self._given) >= _MOST:
            del self._given[next(iter(self._given))]
        self._given[amounts] = given, held


def _amounts(assignments: tuple[Assignment, ...]) -> _Amounts:
    return frozenset((one.machine, len(one.share.attention), len(one.share.ffn)) for one in assignments)


def _ranks(found: Assignments) -> dict[str, int]:
    return {one.machine: rank for rank, one in enumerate(found.assignments)}


def _names(places: _Places) -> tuple[str, ...]:
    return tuple(name for name, _ in places)
