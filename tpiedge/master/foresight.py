"""Plans for what may come: a machine less or more, as somebody asks, and, while an epoch serves, the loss of each of
its workers, with what machines stock for that.

Such a plan is at hand when it is needed, and what it lacks has come to the machines' disks before, so that those that
are left read it instead of fetching it.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from msgspec import structs

from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.roster import Machine
from tpiedge.sanitise import sanitised_line
from tpiedge.wire.epochs import Stock, Stocked
from tpiedge.wire.fields import UnitRange

_log = logging.getLogger(__name__)

PlaceNodes: TypeAlias = Callable[[tuple[Machine, ...], tuple[str, ...]], Assignments | NoPlan]
"""(present machines, workers that serve now) -> assignments, or why there are none."""

_Share = tuple[UnitRange, UnitRange]


def plan_safely(
    plan: PlaceNodes, machines: Sequence[Machine], serving: tuple[str, ...]
) -> Assignments | NoPlan:
    """The plan; where the planner raises, the reason why there is none."""
    try:
        return plan(tuple(machines), serving)
    except Exception as error:
        _log.debug("the planner failed", exc_info=True)
        what = sanitised_line(f"{type(error).__name__}: {error}")
        return NoPlan(f"the planner fails ({what}): please report it")


@dataclass(eq=False)
class Foresight:
    """For the control thread; nothing blocks. `tell(message, machine)` sends without waiting."""

    _plan: PlaceNodes
    _tell: Callable[[Stock, str], None]
    _pack_id: str
    #: Without it machines say what is on their disks, and fetch nothing.
    stock: bool
    #: For whom the plans are made: what plans depend on of machines, and the workers that serve.
    _facts: object = None
    #: The losses that are still to be planned for, and by machine the shares that the plans made so far give it.
    _due: list[str] = field(default_factory=list)
    _needed: dict[str, dict[_Share, None]] = field(default_factory=dict)
    _number: int = 0
    #: By machine, what it was told, and the nonce of the agent that it was told to.
    _told: dict[str, tuple[int, Stock]] = field(default_factory=dict)
    stocked: dict[str, Stocked] = field(default_factory=dict)

    def heard(self, machine: str, message: Stocked) -> None:
        """Takes a machine's answer, unless it is to an earlier order."""
        _, told = self._told.get(machine, (0, None))
        if told is not None and told.number == message.number:
            self.stocked[machine] = structs.replace(message, complete=message.complete and bool(told.shares))

    def again(self) -> None:
        """What plans depend on beside the workers has changed."""
        self._facts = None

    def look(self, machines: Sequence[Machine], serving: Sequence[str]) -> None:
        """Makes one plan more, if one is missing, and once all are made tells each machine what they need of it.
        `machines` are those that a plan would be made for now, `serving` the workers that serve."""
        facts = [(one.name, one.offer, one.link, one.slowdown) for one in machines], tuple(serving)
        if facts != self._facts:
            self._facts = facts
            self._due = ["", *serving]  # "": a node is lost, and its machine stays
            self._needed = {one.name: {} for one in machines}
        if not self._due:
            return
        lost = self._due.pop(0)
        found = plan_safely(self._plan, [one for one in machines if one.name != lost], ())
        for part in found.assignments if isinstance(found, Assignments) else ():
            if part.machine:  # the master's own has the whole pack
                self._needed[part.machine][part.attention, part.ffn] = None
        if not self._due:
            self._order(machines)

    def _order(self, machines: Sequence[Machine]) -> None:
        told, self._told = self._told, {}
        for machine in machines:
            shares = tuple(self._needed[machine.name]) if self.stock else ()
            nonce, before = told.get(machine.name, (0, None))
            if before is not None and (nonce, before.shares) == (machine.offer.nonce, shares):
                self._told[machine.name] = nonce, before
                continue
            self._number += 1
            stock = Stock(0, self._number, self._pack_id, shares)
            self._told[machine.name] = machine.offer.nonce, stock
            self.stocked.pop(machine.name, None)
            self._tell(stock, machine.name)
        self.stocked = {name: said for name, said in self.stocked.items() if name in self._told}


# --- what the planner predicts for one machine less or one more


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted seconds for a token, now and then; None where no plan can be made, `why` says then why not. `machines`:
    how many computing ones the plan then has; `takes_part`: whether the one that it is about has a part in the plan,
    now for one less, then for one more."""

    now_s: float | None
    then_s: float | None
    machines: int
    takes_part: bool
    why: str


def what_if(place: PlaceNodes, machines: Sequence[Machine], name: str) -> Forecast:
    """The best plans with all `machines`, which may be in plans now, and without the one of that name; with "", of at
    least one, with one more like the last."""
    another = replace(machines[-1], name="another", place=math.inf)
    others = [one for one in machines if one.name != name] if name else [*machines, another]
    now, then = (plan_safely(place, some, ()) for some in (machines, others))
    of = now if name else then
    parts = {one.machine for one in of.assignments} if isinstance(of, Assignments) else set()
    return Forecast(
        now.step_s if isinstance(now, Assignments) else None,
        then.step_s if isinstance(then, Assignments) else None,
        len(then.assignments) if isinstance(then, Assignments) else 0,
        (name or another.name) in parts,
        then.reason if isinstance(then, NoPlan) else "",
    )
