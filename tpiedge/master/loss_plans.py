"""Plans for the loss of each serving worker, and predictions for one machine less or more. Machines fetch the plans'
shards ahead."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from msgspec import structs

from tpiedge.master.assignments import Assignments
from tpiedge.master.roster import Machine
from tpiedge.sanitise import sanitised_line
from tpiedge.wire.epochs import Prefetch, Prefetched
from tpiedge.wire.fields import ShareRanges

_log = logging.getLogger(__name__)

PlaceNodes: TypeAlias = Callable[[tuple[Machine, ...], tuple[str, ...]], Assignments]
"""(present machines, workers that serve now) -> assignments."""


def plan_safely(plan: PlaceNodes, machines: Sequence[Machine], serving: tuple[str, ...]) -> Assignments:
    """Makes the plan. An exception becomes the reason why there is no plan."""
    try:
        return plan(tuple(machines), serving)
    except Exception as error:
        _log.debug("the planner failed", exc_info=True)
        what = sanitised_line(f"{type(error).__name__}: {error}")
        return Assignments((), reason=f"the planner fails ({what}): please report it")


@dataclass(eq=False)
class LossPlans:
    """Plans for losses. Nothing blocks: `send(message, machine)` does not wait."""

    _plan: PlaceNodes
    _send: Callable[[Prefetch, str], None]
    _pack_id: str
    prefetch: bool  # False: machines only report what is on their disks
    _facts: object = None  # the input of the plans
    #: The losses that are still to be planned for; the shares in the plans made so far, by machine.
    _due: list[str] = field(default_factory=list)
    _needed: dict[str, dict[ShareRanges, None]] = field(default_factory=dict)
    _number: int = 0
    _told: dict[str, tuple[int, Prefetch]] = field(default_factory=dict)  # nonces and orders, by machine
    reports: dict[str, Prefetched] = field(default_factory=dict)

    def serve(self, plan: PlaceNodes, pack_id: str) -> None:
        """Plans for this model from now on."""
        if pack_id != self._pack_id:
            self._plan, self._pack_id, self._facts = plan, pack_id, None

    def note_prefetched(self, machine: str, message: Prefetched) -> None:
        _, told = self._told.get(machine, (0, None))
        if told is not None and told.number == message.number:
            self.reports[machine] = structs.replace(message, complete=message.complete and bool(told.shares))

    def plan_next(self, machines: Sequence[Machine], serving: Sequence[str], own_bytes: int) -> None:
        """Makes one missing plan. Once no plan is missing, orders machines to fetch the plans' shards. `own_bytes`: the
        master's memory."""
        facts = [(one.name, one.offer, one.link, one.slowdown) for one in machines], tuple(serving), own_bytes
        if facts != self._facts:
            self._facts = facts
            self._due = ["", *serving]  # "": a node is lost, and its machine stays
            self._needed = {one.name: {} for one in machines}
        if not self._due:
            return
        lost = self._due.pop(0)
        found = plan_safely(self._plan, [one for one in machines if one.name != lost], ())
        for part in found.assignments:
            if part.machine:  # the master's own has the whole pack
                self._needed[part.machine][part.share.ranges] = None
        if not self._due:
            self._order(machines)

    def _order(self, machines: Sequence[Machine]) -> None:
        told, self._told = self._told, {}
        for machine in machines:
            shares = tuple(self._needed[machine.name]) if self.prefetch else ()
            nonce, before = told.get(machine.name, (0, None))
            same = before is not None and (before.pack, before.shares) == (self._pack_id, shares)
            if before is not None and same and nonce == machine.offer.nonce:
                self._told[machine.name] = nonce, before
                continue
            self._number += 1
            order = Prefetch(0, self._number, self._pack_id, shares)
            self._told[machine.name] = machine.offer.nonce, order
            self.reports.pop(machine.name, None)
            self._send(order, machine.name)
        self.reports = {name: said for name, said in self.reports.items() if name in self._told}


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicts what changes when a machine leaves or joins. `now_s`, `then_s`: seconds per token before and afterwards;
    None without a plan. `why`: the reason if there is no plan afterwards. `machines`: how many have a part afterwards.
    `takes_part`: whether this machine has a part."""

    now_s: float | None
    then_s: float | None
    machines: int
    takes_part: bool
    why: str


def what_if(place: PlaceNodes, machines: Sequence[Machine], name: str) -> Forecast:
    """Compares plans with and without `name`; if that is "", with one more machine."""
    another = replace(machines[-1], name="another", place=math.inf)
    others = [one for one in machines if one.name != name] if name else [*machines, another]
    now, then = (plan_safely(place, some, ()) for some in (machines, others))
    parts = {one.machine for one in (now if name else then).assignments}
    return Forecast(
        now.step_s if now.assignments else None,
        then.step_s if then.assignments else None,
        len(then.assignments),
        (name or another.name) in parts,
        then.reason,
    )
