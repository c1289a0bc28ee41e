"""The machines of a cluster as the master knows them: a state machine without sockets, threads or clock.

Laws:
1. A machine counts as present from its Offer on until it is lost: silent for longer than the timeout, or its link
   broke.
2. A machine that was lost is present again with its next Offer, and only then; the master answers anything else that
   it sends by asking for one.
3. Of the machines that are not present the GONE that were heard last are remembered, and of the PLACES before them
   their places alone: each turn of the master looks at all machines, and a member may come with ever new keys.
4. A drained machine stays so, lost or not, until its agent is started anew (another nonce) or the drain is undone.
5. A machine's slowdown lasts until it offers another speed, or returns.
6. `generation` changes whenever a plan may become another one: the machines that are present, wait or are drained, an
   offer, a link, a machine's speed. `steady` does not change where a machine comes or goes that waits or is drained.
   What is on a machine's disk leads to no other plan, nor does the claim that a plan gave it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tpiedge.master.seats import Claim, Seats
from tpiedge.master.workers import (
    Fault,
    Standing,
    WorkerAction,
    WorkerEvent,
    WorkerState,
    changed,
    failed,
    step,
)
from tpiedge.pack.held import HeldUnits
from tpiedge.wire.epochs import Offer
from tpiedge.wire.probing import LinkSpeed

GONE: Final = 64
PLACES: Final = 1024

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
    #: What it has of the model that is served.
    held: HeldUnits = field(default_factory=HeldUnits)
    #: To a part of --shares.
    claim: Claim | None = None

    @property
    def present(self) -> bool:
        return self.standing.state is not WorkerState.AWAY

    @property
    def drained(self) -> bool:
        """Whether its user takes it out of plans."""
        return self.standing.drained

    @property
    def planned_by(self) -> tuple[str, Offer, LinkSpeed | None, float, Claim | None]:
        """What a plan depends on, but for the order of its ranks."""
        return self.name, self.offer, self.link, self.slowdown, self.claim


class Roster:
    """The workers by name, which belongs to their key, in the order in which they were let in; first those that have a
    claim to a part of --shares.

    `known` lists those that were let in before this master started, so that each keeps its place, and thus its weights;
    `seats` is the table of the master before.
    """

    def __init__(self, timeout_s: float, known: Sequence[str] = (), seats: Seats | None = None) -> None:
        self._timeout_s = timeout_s
        self._machines: dict[str, Machine] = {}
        self._places = {name: place for place, name in enumerate(known)}
        self._next_place = len(known)
        #: Those of which only the places are remembered, in the order in which these are given up.
        self._away: dict[str, None] = {}
        self.generation = self.steady = 0
        #: The machines that are to be asked for their offer.
        self.asked: list[str] = []
        #: Of the master's own machine: the failures that are no worker's.
        self.own = _PRESENT
        self._seats = seats or Seats()
        for name in set(self._seats.names).difference(known):
            self._seats = self._seats.without(name)
        for name in known:
            self._seats = self._seats.joined(name)
        for name in reversed(known):
            self._keep_place(name)

    @property
    def seats(self) -> Seats:
        """Whose the parts of --shares are."""
        return self._seats

    @property
    def machines(self) -> tuple[Machine, ...]:
        return tuple(
            sorted(self._machines.values(), key=lambda one: (one.claim is None, self._places[one.name]))
        )

    @property
    def present(self) -> tuple[Machine, ...]:
        return tuple(machine for machine in self.machines if machine.present)

    def get(self, name: str) -> Machine | None:
        return self._machines.get(name)

    def expect(self, name: str) -> None:
        """The machine was let in: it has the next place, whenever it makes its offer."""
        if name not in self._places:
            self._take_place(name)
            self._keep_place(name)

    def offered(self, name: str, offer: Offer, now: float) -> bool:
        """The machine makes an offer: it is present from now on. Returns whether the offer counts."""
        known = self._machines.get(name)
        self._take_place(name)
        if known is None or not known.present:
            standing = Standing() if known is None else known.standing
            if known is not None and known.offer.nonce != offer.nonce:
                standing = replace(standing, drained=False)
            cause, claim = known.cause if known else "", self._seats.claim(name)
            self._machines[name] = Machine(
                name, offer, now, now, now, cause=cause, claim=claim, standing=standing
            )
            self.step(name, WorkerEvent.OFFERED, now)
            self.own = replace(self.own, due=min(self.own.due, now))  # the next plan is another one
            return True
        if known.offer != offer:
            if known.standing.deaf(now):
                self.heard(name, now)
                return False
            if known.offer.capacity != offer.capacity:
                known = replace(known, slowdown=1.0, changes=0)
            known = replace(known, offered=now)
            self._take(known, *changed(known.standing, now))
            known = replace(known, standing=self._machines[name].standing)
        self._machines[name] = replace(known, offer=offer, heard=now)
        return True

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

    def failed_itself(self, now: float, cause: str) -> None:
        """Something failed that is no worker's, as the master's own node."""
        self.own = failed(self.own, now, "died", cause)

    def proved(self, names: Iterable[str]) -> None:
        """A session of these workers has proven itself: earlier failures are in no row with later ones."""
        self.own = replace(self.own, row=0)
        for name in names:
            machine = self._machines.get(name)
            if machine is not None:
                self._machines[name] = replace(machine, standing=replace(machine.standing, row=0))

    def readmit(self, now: float) -> None:
        """Ends the waits whose time is over."""
        for one in self.present:
            if one.standing.fault and not one.standing.waits(now):
                self.step(one.name, WorkerEvent.OVER, now)

    def _take(self, machine: Machine, standing: Standing, actions: Sequence[WorkerAction]) -> None:
        rests = (WorkerState.AWAY, WorkerState.WAITING, WorkerState.DRAINED)
        if "plan" in actions:
            self.generation += 1
            self.steady += not (machine.standing.state in rests and standing.state in rests)
        if "ask" in actions:
            self.asked.append(machine.name)
        self._machines[machine.name] = replace(machine, standing=standing)

    def measured(self, name: str, link: LinkSpeed) -> None:
        """The speed of the link to the machine was measured."""
        machine = self._machines.get(name)
        if machine is not None and machine.present:
            self._machines[name] = replace(machine, link=link)
            self.changed_beside()

    def holds(self, name: str, held: HeldUnits) -> None:
        """The machine said what is on its disk."""
        machine = self._machines.get(name)
        if machine is not None and machine.present:
            self._machines[name] = replace(machine, held=held)

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

    def take_seats(self, names: Sequence[str]) -> None:
        """A plan was made in which `names[number]` has that part of --shares."""
        self._seat(self._seats.taken(names))

    def lose(self, name: str, cause: str, now: float, event: WorkerEvent = WorkerEvent.LOST) -> bool:
        """Marks the machine as lost; returns whether it was present until now."""
        machine = self._machines.get(name)
        if machine is None or not machine.present:
            return False
        words = f"it was lost: {cause}"
        self._take(replace(machine, cause=cause), *step(machine.standing, event, now, "lost", words))
        gone = [one for one in self._machines.values() if not one.present]
        if len(gone) > GONE:
            first = min(gone, key=lambda one: one.heard).name
            del self._machines[first]
            self._keep_place(first)
        return True

    def forget(self, name: str) -> None:
        """The machine was revoked."""
        self._seat(self._seats.without(name))
        if self._machines.pop(name, None) is not None:
            self._keep_place(name)
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

    def _take_place(self, name: str) -> None:
        self._away.pop(name, None)
        if name not in self._places:
            self._places[name] = self._next_place
            self._next_place += 1
            self._seat(self._seats.joined(name))

    def _seat(self, seats: Seats) -> None:
        if seats != self._seats:
            self._seats = seats
            for name, machine in self._machines.items():
                self._machines[name] = replace(machine, claim=seats.claim(name))

    def _keep_place(self, name: str) -> None:
        self._away[name] = None
        if len(self._away) > PLACES:
            longest = next(iter(self._away))
            del self._away[longest], self._places[longest]
