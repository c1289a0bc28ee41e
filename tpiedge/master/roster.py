"""The machines of a cluster as the master knows them: a state machine without sockets, threads or clock.

A machine is present from its Offer on until it is lost, and again from its next Offer on. Of those that are not present
the GONE that were heard last are remembered: a member may come with ever new keys. A drained machine stays so until its
agent is started anew (another nonce) or the drain is undone, and a slowdown until another speed is offered.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tpiedge.master.workers import Fault, Standing, WorkerAction, WorkerEvent, WorkerState, step
from tpiedge.wire.epochs import Offer
from tpiedge.wire.probing import LinkSpeed

GONE: Final = 64

_PRESENT: Final = Standing(WorkerState.PRESENT)
STOPPED: Final = "it was stopped there"
"""The cause of a loss that is none: the machine said that it leaves."""


@dataclass(frozen=True)
class Machine:
    """What the master knows of one machine. Times are seconds on the caller's clock."""

    name: str
    offer: Offer
    heard: float
    #: Since when it is present without a break.
    since: float
    #: When it made this offer, or made it again after it was lost.
    offered: float = 0.0
    #: The link to the master; None until it is measured.
    link: LinkSpeed | None = None
    #: Why it was lost the last time; "" if it never was.
    cause: str = ""
    standing: Standing = _PRESENT
    #: By how much it computes slower than it measured, since when, and how often that has changed.
    slowdown: float = 1.0
    slowed: float = 0.0
    changes: int = 0
    #: In the order in which machines were let in.
    place: float = math.inf

    @property
    def present(self) -> bool:
        return self.standing.state is not WorkerState.AWAY

    @property
    def drained(self) -> bool:
        return self.standing.drained


class Roster:
    """The workers by name, which belongs to their key, in the order in which they were let in. `known` lists those that
    were let in before this master started, so that each keeps its place, and thus its weights."""

    def __init__(self, timeout_s: float, known: Sequence[str] = ()) -> None:
        self._timeout_s = timeout_s
        self._machines: dict[str, Machine] = {}
        self._places = {name: place for place, name in enumerate(known)}
        #: `generation` changes whenever a plan may become another one, `steady` not where a machine comes or goes that
        #: waits or is drained.
        self.generation = self.steady = 0
        #: Of the master's own machine: the failures that are no worker's.
        self.own = _PRESENT

    @property
    def machines(self) -> tuple[Machine, ...]:
        return tuple(sorted(self._machines.values(), key=lambda one: one.place))

    @property
    def present(self) -> tuple[Machine, ...]:
        return tuple(machine for machine in self.machines if machine.present)

    def get(self, name: str) -> Machine | None:
        return self._machines.get(name)

    def expect(self, name: str) -> int:
        """The machine was let in: it has the next place, whenever it makes its offer. Returns its place."""
        return self._places.setdefault(name, max(self._places.values(), default=-1) + 1)

    def offered(self, name: str, offer: Offer, now: float) -> None:
        """The machine makes an offer: it is present from now on."""
        known = self._machines.get(name)
        if known is None or not known.present:
            standing = Standing() if known is None else known.standing
            if known is not None and known.offer.nonce != offer.nonce:
                standing = replace(standing, drained=False)
            cause, place = known.cause if known else "", self.expect(name)
            self._machines[name] = Machine(
                name, offer, now, now, now, cause=cause, place=place, standing=standing
            )
            self.step(name, WorkerEvent.OFFERED, now)
            self.own = replace(self.own, due=min(self.own.due, now))  # the next plan is another one
            return
        if known.offer != offer:
            if known.offer.capacity != offer.capacity:
                known = replace(known, slowdown=1.0, changes=0)
            known = replace(known, offered=now)
            self._take(known, known.standing, ("plan",))
        self._machines[name] = replace(known, offer=offer, heard=now)

    def heard(self, name: str, now: float) -> bool:
        """The machine sent something. False if it must first make its offer (again)."""
        machine = self._machines.get(name)
        if machine is None or not machine.present:
            return False
        self._machines[name] = replace(machine, heard=now)
        return True

    def step(self, name: str, event: WorkerEvent, now: float, fault: Fault = "", cause: str = "") -> None:
        """Something happens to the worker; to one that is not known, nothing does."""
        machine = self._machines.get(name)
        if machine is not None:
            self._take(machine, *step(machine.standing, event, now, fault, cause))

    def proved(self, names: Iterable[str]) -> None:
        """A session of these workers has proven itself: earlier failures are in no row with later ones."""
        self.own = replace(self.own, row=0)
        for name in names:
            machine = self._machines.get(name)
            if machine is not None:
                self._machines[name] = replace(machine, standing=replace(machine.standing, row=0))

    def readmit(self, now: float) -> None:
        for one in self.present:
            if one.standing.fault and not one.standing.waits(now):
                self.step(one.name, WorkerEvent.OVER, now)

    def _take(self, machine: Machine, standing: Standing, actions: Sequence[WorkerAction]) -> None:
        rests = (WorkerState.AWAY, WorkerState.WAITING, WorkerState.DRAINED)
        if "plan" in actions:
            self.generation += 1
            self.steady += not (machine.standing.state in rests and standing.state in rests)
        self._machines[machine.name] = replace(machine, standing=standing)

    def measured(self, name: str, link: LinkSpeed) -> None:
        machine = self._machines.get(name)
        if machine is not None and machine.present:
            self._machines[name] = replace(machine, link=link)
            self.changed_beside()

    def slowed(self, name: str, slowdown: float, now: float) -> None:
        """The machine computes so many times slower than it measured: one of the powers of the root of 2 between 1/16
        and 16 is kept, so that what hardly differs does not lead to another plan."""
        slowdown = 2 ** (min(8, max(-8, round(2 * math.log2(slowdown)))) / 2)
        machine = self._machines.get(name)
        if machine is not None and machine.present and machine.slowdown != slowdown:
            changes = machine.changes + 1
            self._machines[name] = replace(machine, slowdown=slowdown, slowed=now, changes=changes)
            self.changed_beside()

    def changed_beside(self) -> None:
        """What plans depend on beside the machines has changed."""
        self.generation += 1
        self.steady += 1

    def lose(self, name: str, cause: str, now: float, event: WorkerEvent = WorkerEvent.LOST) -> bool:
        """Marks the machine as lost; returns whether it was present until now."""
        machine = self._machines.get(name)
        if machine is None or not machine.present:
            return False
        words = f"it was lost: {cause}"
        self._take(replace(machine, cause=cause), *step(machine.standing, event, now, "lost", words))
        gone = [one for one in self._machines.values() if not one.present]
        if len(gone) > GONE:
            del self._machines[min(gone, key=lambda one: one.heard).name]
        return True

    def forget(self, name: str) -> None:
        if self._machines.pop(name, None) is not None:
            self.changed_beside()

    def tick(self, now: float) -> tuple[tuple[str, str], ...]:
        """Loses every machine that has been silent for too long, and returns (name, cause) of each."""
        overdue = [
            (machine.name, f"silent for {now - machine.heard:.1f} s (killed, frozen or cut off)")
            for machine in self.present
            if now - machine.heard > self._timeout_s
        ]
        for name, cause in overdue:
            self.lose(name, cause, now)
        return tuple(overdue)
