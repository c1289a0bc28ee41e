"""Which workers plans are made of, and who is left out of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tpiedge.clock import Clock
from tpiedge.master.assignments import Assignment, Assignments, NoPlan
from tpiedge.master.foresight import PlaceNodes, plan_safely
from tpiedge.master.roster import Machine, Roster
from tpiedge.master.session import Phase
from tpiedge.master.session_manager import SessionManager
from tpiedge.master.workers import WorkerState
from tpiedge.planner.capacity import MOST_MACHINES, SpareReason, drained

#: Beside the master's own machine. The control thread makes plans between two heartbeats.
_MOST_WORKERS = MOST_MACHINES - 1
_TOO_MANY = SpareReason("too many", f"the cluster has {_MOST_WORKERS} other workers, and can have no more")
FETCHES = SpareReason("fetching", "its weights take long to come, and the others begin without it")
"""Of a worker in `Selection.slow`."""
#: How many workers of each kind `absent` names: the last ones that were let in.
_NAMED = 3


@dataclass(eq=False)
class Selection:
    """For the control thread."""

    _clock: Clock
    _plan: PlaceNodes
    _roster: Roster
    _sessions: SessionManager
    #: Workers that fetch for long, or get no further, while nothing is served.
    slow: frozenset[str] = frozenset()

    def find(self, without: str = "") -> Assignments | NoPlan:
        """The plan of now, or the one that there would be without a worker: without waiting and slow workers, or else
        with the waiting ones, the one whose wait ends first before the others, or else with the slow ones."""
        serving = self._sessions.serving.machines if self._sessions.serving is not None else ()
        able = [one for one in self.able() if one.name != without]
        awake = {one.name for one in self._awake(self.serving_on())}
        waiting = sorted((one for one in able if one.name not in awake), key=lambda one: one.standing.until)
        names = [one.name for one in waiting]
        fewer = [frozenset(names[count:]) for count in range(len(names) + 1)]
        for shunned in dict.fromkeys([*(one | self.slow for one in fewer), *fewer]):
            machines = [one for one in able if one.name not in shunned]
            found = plan_safely(self._plan, machines[:_MOST_WORKERS], serving)
            beyond = {machine.name: _TOO_MANY for machine in machines[_MOST_WORKERS:]}
            found = replace(found, spare={**found.spare, **beyond})
            if isinstance(found, Assignments):
                break
        return replace(found, spare={**dict.fromkeys(self.slow, FETCHES), **found.spare})

    def able(self) -> list[Machine]:
        now = self._clock.now()
        return [one for one in self._roster.present if not one.drained and not one.standing.barred(now)]

    def steady(self) -> list[Machine]:
        """Those that plans are made for first."""
        return [one for one in self._awake(self.serving_on()) if one.name not in self.slow]

    def plannable(self) -> list[Machine]:
        """The workers of the plan that would be made if nothing served."""
        return self._awake(())[:_MOST_WORKERS]

    def serving_on(self) -> tuple[str, ...]:
        """The workers of what serves, if that can go on."""
        serving = self._sessions.serving
        if serving is None or serving.phase is not Phase.READY:
            return ()
        return serving.machines if {one.name for one in self.able()}.issuperset(serving.machines) else ()

    def due(self, assignments: Sequence[Assignment]) -> float:
        """When that plan may begin. What serves, if it can, goes on as long as a worker of it waits that could not
        prepare another part."""
        serving = self._sessions.serving
        kept = serving.assignments if serving is not None and self.serving_on() else ()
        found = [self._roster.own.due]
        for one in assignments:
            machine = self._roster.get(one.machine)
            if machine is not None:
                bound = machine.standing.fault == "unfit" and one.machine in {part.machine for part in kept}
                found.append(machine.standing.until if bound and one not in kept else machine.standing.due)
        return max(found)

    def excluded(self) -> Mapping[str, SpareReason]:
        """Why workers that are present wait, or are drained."""
        now = self._clock.now()
        found = {}
        for one in self._roster.present:
            if one.drained:
                found[one.name] = drained(one.name)
            elif one.standing.state is WorkerState.WAITING:
                found[one.name] = SpareReason("excluded", one.standing.why(now))
        return found

    def absent(self, spare: Mapping[str, SpareReason]) -> list[str]:
        """Who could serve, is not in any plan, and why, in words: for where the others are too few. `spare`: why plans
        have no part for machines."""
        small = {name: reason.why for name, reason in spare.items() if reason.kind == "too small"}
        excluded = self.excluded()
        causes = {**small, **{name: one.why for name, one in excluded.items() if one.kind == "excluded"}}
        machines, present = self._roster.machines, self._roster.present
        # Who is too small leaves.
        lost = [f"{one.offer.host}: {small.get(one.name, one.cause)}" for one in machines if not one.present]
        out = [f"{one.offer.host} is left out: {causes[one.name]}" for one in present if one.name in causes]
        away = [f"{one.offer.host} is drained" for one in present if one.drained]
        return [*lost[-_NAMED:], *out[-_NAMED:], *away[-_NAMED:]]

    def _awake(self, serving: Collection[str]) -> list[Machine]:
        """Those that do not wait, or are `serving`: plans have the others only where there is none without them."""
        now = self._clock.now()
        return [one for one in self.able() if one.name in serving or not one.standing.waits(now)]
