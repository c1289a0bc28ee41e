"""Selects the workers that a plan may have."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tpiedge.clock import Clock
from tpiedge.master.assignments import Assignment, Assignments
from tpiedge.master.loss_plans import plan_safely
from tpiedge.master.roster import Machine, Roster
from tpiedge.master.session import Phase, Session
from tpiedge.master.session_manager import SessionManager
from tpiedge.master.turns import Turns
from tpiedge.master.workers import WorkerState
from tpiedge.planner.capacity import MOST_MACHINES, SpareReason, drained

_MOST_WORKERS = MOST_MACHINES - 1
_TOO_MANY = SpareReason("too many", f"the cluster has {_MOST_WORKERS} other workers, and can have no more")
FETCHES = SpareReason("fetching", "its weights take long to fetch, so the others start without it")
_NAMED = 3  # workers of each kind that `absent` names


@dataclass(eq=False)
class Selection:
    _clock: Clock
    _turns: Turns
    _roster: Roster
    _sessions: SessionManager
    slow: frozenset[str] = frozenset()  # workers that are overdue while nothing is served

    def find(self, without: str = "") -> Assignments:
        """Makes a plan without the worker `without`. Workers that wait after a failure have a part only if necessary.
        Workers in `slow` take long to fetch weights. These workers are used last."""
        serving = self.wanted.machines if self.wanted else ()
        able = [one for one in self.able() if one.name != without]
        awake = {one.name for one in self.awake(self.serving_on() if serving else ())}
        waiting = sorted((one for one in able if one.name not in awake), key=lambda one: one.standing.until)
        names = [one.name for one in waiting]
        fewer = [frozenset(names[count:]) for count in range(len(names) + 1)]
        for shunned in dict.fromkeys([*(one | self.slow for one in fewer), *fewer]):
            machines = [one for one in able if one.name not in shunned]
            found = plan_safely(self._turns.wanted.plan, machines[:_MOST_WORKERS], serving)
            beyond = {machine.name: _TOO_MANY for machine in machines[_MOST_WORKERS:]}
            found = replace(found, spare={**found.spare, **beyond})
            if not found.reason:
                break
        return replace(found, spare={**dict.fromkeys(self.slow, FETCHES), **found.spare})

    def able(self) -> list[Machine]:
        now = self._clock.now()
        return [one for one in self._roster.present if not one.drained and not one.standing.barred(now)]

    def plannable(self) -> list[Machine]:
        """Returns the workers for a plan that is made while nothing serves."""
        return self.awake(())[:_MOST_WORKERS]

    def serving_on(self) -> tuple[str, ...]:
        """Returns the serving session's workers, or () if it cannot go on."""
        serving = self._sessions.serving
        if serving is None or serving.phase is not Phase.READY:
            return ()
        return serving.machines if {one.name for one in self.able()}.issuperset(serving.machines) else ()

    @property
    def wanted(self) -> Session | None:
        serving = self._sessions.serving
        return serving if serving and serving.served.pack_id == self._turns.wanted.pack else None

    def due(self, assignments: Sequence[Assignment]) -> float:
        """Returns when a plan may begin."""
        kept = self.wanted.assignments if self.wanted and self.serving_on() else ()
        found = [self._roster.own.due]
        for one in assignments:
            machine = self._roster.get(one.machine)
            if machine is not None:
                bound = machine.standing.fault == "unfit" and one.machine in {part.machine for part in kept}
                found.append(machine.standing.until if bound and one not in kept else machine.standing.due)
        return max(found)

    def excluded(self) -> Mapping[str, SpareReason]:
        """Returns why present workers wait or are drained."""
        now = self._clock.now()
        found = {}
        for one in self._roster.present:
            if one.drained:
                found[one.name] = drained(one.name)
            elif one.standing.state is WorkerState.WAITING:
                found[one.name] = SpareReason("excluded", one.standing.why(now))
        return found

    def absent(self, spare: Mapping[str, SpareReason]) -> list[str]:
        """Returns lines on workers that are lost, left out or drained. `spare`: why machines have no part."""
        small = {name: reason.why for name, reason in spare.items() if reason.kind == "too small"}
        excluded = self.excluded()
        causes = {**small, **{name: one.why for name, one in excluded.items() if one.kind == "excluded"}}
        machines, present = self._roster.machines, self._roster.present
        # A worker that is too small leaves.
        lost = [f"{one.offer.host}: {small.get(one.name, one.cause)}" for one in machines if not one.present]
        out = [f"{one.offer.host} is left out: {causes[one.name]}" for one in present if one.name in causes]
        away = [f"{one.offer.host} is drained" for one in present if one.drained]
        return [*lost[-_NAMED:], *out[-_NAMED:], *away[-_NAMED:]]

    def awake(self, serving: Collection[str]) -> list[Machine]:
        """Returns able workers that do not wait or that are `serving`."""
        now = self._clock.now()
        return [one for one in self.able() if one.name in serving or not one.standing.waits(now)]
