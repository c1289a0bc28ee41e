"""Which workers plans are made of, and who is left out of them."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tpiedge.clock import Clock
from tpiedge.master.assignments import Assignment, Assignments, NoPlan
from tpiedge.master.planning import PlaceNodes, plan_without_breakers
from tpiedge.master.quarantine import Exclusion, Reputation
from tpiedge.master.roster import Machine, Roster
from tpiedge.master.session import Phase
from tpiedge.master.session_manager import SessionManager
from tpiedge.planner.capacity import MOST_MACHINES
from tpiedge.planner.reasons import SpareReason, drained

_log = logging.getLogger(__name__)

#: Beside the master's own machine. The control thread makes plans between two heartbeats.
_MOST_WORKERS = MOST_MACHINES - 1
_TOO_MANY = SpareReason("too many", f"the cluster has {_MOST_WORKERS} other workers, and can have no more")
FETCHES = SpareReason("fetching", "its weights take long to come, and the others begin without it")
"""Of a worker in `Selection.slow`."""


class Selection:
    """For the control thread."""

    def __init__(
        self, clock: Clock, plan: PlaceNodes, roster: Roster, reputation: Reputation, sessions: SessionManager
    ) -> None:
        #: Workers that fetch for long, or get no further, while nothing is served.
        self.slow: frozenset[str] = frozenset()
        self._clock = clock
        self._plan = plan
        self._roster = roster
        self._reputation = reputation
        self._sessions = sessions
        self._resting: tuple[str, ...] = ()  # avoided workers that the last plan leaves out

    def add_slow(self, names: Collection[str]) -> bool:
        """These are slow, too; returns whether that is new of one of them."""
        if self.slow.issuperset(names):
            return False
        self.slow = self.slow.union(names) & {machine.name for machine in self._roster.machines}
        return True

    def find(self) -> Assignments | NoPlan:
        """The plan of now; those that it leaves out because they are avoided are `left_out` from now on."""
        found, self._resting = self._find(())
        return found

    def find_without(self, name: str) -> Assignments | NoPlan:
        """The plan that there would be without that worker."""
        return self._find([name])[0]

    def able(self, without: Collection[str] = ()) -> list[Machine]:
        """Those that plans may have."""
        shunned = {*self._reputation.left_out, *without}
        return [one for one in self._roster.present if not one.drained and one.name not in shunned]

    def steady(self, serving: tuple[str, ...]) -> list[Machine]:
        """Those that plans are made for first, while the workers `serving` serve."""
        shunned = {*self._reputation.avoided(serving), *self.slow}
        return [one for one in self.able() if one.name not in shunned]

    def plannable(self) -> list[Machine]:
        """The workers of the plan that would be made now."""
        return self.steady(())[:_MOST_WORKERS]

    def serving_on(self) -> tuple[str, ...]:
        """The workers of what serves, if that can go on."""
        serving = self._sessions.serving
        if serving is None or serving.phase is not Phase.READY:
            return ()
        steady = {one.name for one in self.steady(serving.machines)}
        return serving.machines if steady.issuperset(serving.machines) else ()

    def bound(self, assignments: Sequence[Assignment]) -> SpareReason | None:
        """Why what serves goes on instead of that plan: it gives another part to a worker that could not prepare one.
        None where it does not, or where what serves is not to go on."""
        if self._sessions.serving is None:
            return None
        parts = {one.machine: one for one in self._sessions.serving.assignments}
        held = {name: one for name, one in self._reputation.bound.items() if name in self.serving_on()}
        for one in assignments:
            if one.machine in held and one != parts[one.machine]:
                cause = held[one.machine].cause
                return SpareReason("no plan", f"the plan with it failed, and what serves goes on ({cause})")
        return None

    def left_out(self) -> Mapping[str, Exclusion]:
        """The workers that are excluded from plans, each with the reason; where no session is there, also those with
        which the next one waits."""
        present = {machine.name for machine in self._roster.present}
        avoided = self._reputation.avoided()
        resting = {name: avoided[name] for name in self._resting if name in avoided and name in present}
        excluded = {**resting, **self._reputation.left_out}
        if not self._sessions.active:
            waiting = present.intersection(self._reputation.waiting(self._clock.now()))
            due = {name: replace(avoided[name], until=self._reputation.due(name)) for name in waiting}
            excluded = {**due, **excluded}
        without = self.drained()
        return {name: why for name, why in excluded.items() if name not in without}

    def drained(self) -> Mapping[str, SpareReason]:
        """The workers that their users do without."""
        return {one.name: drained(one.name) for one in self._roster.present if one.drained}

    def _find(self, without: Collection[str]) -> tuple[Assignments | NoPlan, tuple[str, ...]]:
        """A plan without those workers, drained, avoided and slow ones, or else one with the latter two, if it can be
        without those that are to wait, or the last that failed. Beside it the avoided workers that it leaves out."""
        serving = self._sessions.serving.machines if self._sessions.serving is not None else ()
        able, avoided = self.able(without), self._reputation.avoided(serving)
        names = {one.name for one in able}
        failed, waiting = self._reputation.last_unfit, self._reputation.waiting(self._clock.now())
        ever_fewer = ({*avoided, *self.slow}, {*failed, *waiting}, failed, ())
        for shunned in dict.fromkeys(frozenset(names.intersection(each)) for each in ever_fewer):
            found = self._plan_for([one for one in able if one.name not in shunned], serving)
            resting = tuple(name for name in avoided if name in shunned or name not in names)
            if isinstance(found, Assignments):
                break
        return replace(found, spare={**dict.fromkeys(self.slow, FETCHES), **found.spare}), resting

    def _plan_for(self, machines: Sequence[Machine], serving: tuple[str, ...]) -> Assignments | NoPlan:
        """A plan for the machines, but for those that break the planner: they are left out for a while."""
        machines = [one for one in machines if one.name not in self._reputation.left_out]
        first = tuple(machines[:_MOST_WORKERS])
        found, broken = plan_without_breakers(self._plan, first, serving)
        for name, cause in broken.items():
            _log.warning("%s is left out of plans: %s", name, cause)
            self._reputation.exclude(name, cause, self._clock.now())
        beyond = {machine.name: _TOO_MANY for machine in machines[_MOST_WORKERS:]}
        return replace(found, spare={**found.spare, **beyond})
