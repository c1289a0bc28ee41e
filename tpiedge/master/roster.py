"""The machines of a cluster as the master knows them. Pure.

A machine is present from its Offer until it is lost. The last GONE absent machines are remembered. A drained machine
stays drained until its agent restarts (with another nonce) or the drain is undone."""

import logging
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tpiedge.master.workers import Fault, Standing, WorkerAction, WorkerEvent, WorkerState, step
from tpiedge.wire.epochs import Offer
from tpiedge.wire.probing import LinkSpeed

_log = logging.getLogger(__name__)

GONE: Final = 64
SLOWED_S: Final = 600.0

_PRESENT: Final = Standing(WorkerState.PRESENT)
STOPPED: Final = "its user stopped it"  # the cause of a loss that the machine announced


@dataclass(frozen=True)
class Machine:
    """Times are seconds on the caller's clock."""

    name: str
    offer: Offer
    heard: float
    since: float  # present without a break
    link: LinkSpeed | None = None  # to the master; None until it is measured
    cause: str = ""  # of its last loss
    standing: Standing = _PRESENT
    slowdown: float = 1.0  # times slower than measured
    slowed: float = -math.inf  # when `slowdown` changed
    place: float = math.inf  # in the order of admission

    @property
    def present(self) -> bool:
        return self.standing.state is not WorkerState.AWAY

    @property
    def drained(self) -> bool:
        return self.standing.drained


class Roster:
    """The workers, in order of admission. `known`: names admitted earlier."""

    def __init__(self, timeout_s: float, known: Sequence[str] = ()) -> None:
        self._timeout_s = timeout_s
        self._machines: dict[str, Machine] = {}
        self._places = {name: place for place, name in enumerate(known)}
        self.generation = 0  # changes when another plan may be made
        self.own = _PRESENT  # the master's own machine, with failures that no worker caused

    @property
    def machines(self) -> tuple[Machine, ...]:
        return tuple(sorted(self._machines.values(), key=lambda one: one.place))

    @property
    def present(self) -> tuple[Machine, ...]:
        return tuple(machine for machine in self.machines if machine.present)

    def get(self, name: str) -> Machine | None:
        return self._machines.get(name)

    def expect(self, name: str) -> int:
        """Returns an admitted machine's place; a new machine gets the next place."""
        return self._places.setdefault(name, max(self._places.values(), default=-1) + 1)

    def offered(self, name: str, offer: Offer, now: float) -> None:
        known = self._machines.get(name)
        if known is None or not known.present:
            standing = Standing() if known is None else known.standing
            if known is not None and known.offer.nonce != offer.nonce:
                standing = replace(standing, drained=False)
            cause, place = known.cause if known else "", self.expect(name)
            self._machines[name] = Machine(name, offer, now, now, None, cause, standing, place=place)
            self.step(name, WorkerEvent.OFFERED, now)
            self.own = replace(self.own, due=min(self.own.due, now))  # the next plan will differ
            return
        if known.offer != offer:
            if known.offer.capacity != offer.capacity:
                known = replace(known, slowdown=1.0, slowed=-math.inf)
            self._apply(known, known.standing, ("plan",))
        self._machines[name] = replace(known, offer=offer, heard=now)

    def note_alive(self, name: str, now: float) -> bool:
        """Notes a sign of life. Returns False if an offer is needed."""
        machine = self._machines.get(name)
        if machine is None or not machine.present:
            return False
        self._machines[name] = replace(machine, heard=now)
        return True

    def step(self, name: str, event: WorkerEvent, now: float, fault: Fault = "", cause: str = "") -> None:
        machine = self._machines.get(name)
        if machine is not None:
            self._apply(machine, *step(machine.standing, event, now, fault, cause))

    def proved(self, names: Iterable[str]) -> None:
        """Sets the counts of failures in a row to 0, for the workers `names` and the master's node."""
        self.own = replace(self.own, row=0)
        for name in names:
            machine = self._machines.get(name)
            if machine is not None:
                self._machines[name] = replace(machine, standing=replace(machine.standing, row=0))

    def readmit(self, now: float) -> None:
        for one in self.present:
            if one.standing.fault and not one.standing.waits(now):
                self.step(one.name, WorkerEvent.OVER, now)

    def _apply(self, machine: Machine, standing: Standing, actions: Sequence[WorkerAction]) -> None:
        if "plan" in actions:
            self.generation += 1
        self._machines[machine.name] = replace(machine, standing=standing)

    def measured(self, name: str, link: LinkSpeed) -> None:
        machine = self._machines.get(name)
        if machine is not None and machine.present:
            self._machines[name] = replace(machine, link=link)
            self.generation += 1

    def slowed(self, shown: Mapping[str, Sequence[float]], now: float) -> None:
        """Stores slowdowns that at least doubled or halved, at most once in ten minutes per machine. `shown`: slowdowns
        of machines with a part. Other machines return to the speed that they measured."""
        for one in self.present:
            found = [min(16.0, max(1 / 16, slowdown)) for slowdown in shown.get(one.name, (1.0,))]
            differs = (
                min(found, default=1.0) >= 2 * one.slowdown
                or max(found, default=16.0) <= one.slowdown / 2
                or (one.name not in shown and one.slowdown != 1)
            )
            if found and differs and now - one.slowed >= SLOWED_S:
                slowdown = statistics.median(found)
                _log.info("%s takes %.1f times as long as it measured", one.offer.host, slowdown)
                self._machines[one.name] = replace(one, slowdown=slowdown, slowed=now)
                self.generation += 1

    def mark_away(self, name: str, cause: str, now: float, event: WorkerEvent = WorkerEvent.LOST) -> None:
        machine = self._machines.get(name)
        if machine is None or not machine.present:
            return
        words = f"it was lost: {cause}"
        self._apply(replace(machine, cause=cause), *step(machine.standing, event, now, "lost", words))
        gone = [one for one in self._machines.values() if not one.present]
        if len(gone) > GONE:
            del self._machines[min(gone, key=lambda one: one.heard).name]

    def remove(self, name: str) -> None:
        if self._machines.pop(name, None) is not None:
            self.generation += 1

    def silent(self, now: float) -> list[tuple[str, str]]:
        """Returns (name, cause) of each machine that was silent for too long."""
        return [
            (machine.name, f"silent for {now - machine.heard:.1f} s (killed, frozen or cut off)")
            for machine in self.present
            if now - machine.heard > self._timeout_s
        ]
