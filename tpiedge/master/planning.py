"""Plans even where a worker's numbers break the planner: a pure function of the placement function.

Laws:
1. Whatever the placement function raises, the answer is a plan or the reason why there is none.
2. Where it raises, the workers are left out one after the other, the newest offer first, until it does not. The last
   one that was left out is to blame, and the others are planned with again.
3. Where it raises even without any worker, no worker is to blame.
"""

import logging
from collections.abc import Callable, Mapping

from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.roster import Machine
from tpiedge.sanitise import sanitised_line

_log = logging.getLogger(__name__)

PlaceNodes = Callable[[tuple[Machine, ...], tuple[str, ...]], Assignments | NoPlan]
"""(present machines, workers that serve now) -> assignments, or why there are none."""


def plan_without_breakers(
    plan: PlaceNodes, machines: tuple[Machine, ...], serving: tuple[str, ...]
) -> tuple[Assignments | NoPlan, Mapping[str, str]]:
    """Returns the plan for all machines but those that break the planner, and of each of the latter the cause."""
    causes: dict[str, str] = {}
    while True:
        left = tuple(machine for machine in machines if machine.name not in causes)
        found, breaker, error = _plan_for_oldest(plan, left, serving)
        if breaker is None:
            return found, causes
        causes[breaker.name] = f"its numbers break the planner ({error}): please report it"


def _plan_for_oldest(
    plan: PlaceNodes, machines: tuple[Machine, ...], serving: tuple[str, ...]
) -> tuple[Assignments | NoPlan, Machine | None, str]:
    """Returns the plan for as many of the oldest offers as it can be made for, the next one, which breaks it, and the
    error; None where no worker is to blame."""
    oldest = sorted(machines, key=lambda machine: machine.offered)
    breaker, error = None, ""
    while True:
        try:
            return plan(tuple(one for one in machines if one in oldest), serving), breaker, error
        except Exception as raised:
            _log.debug("the planner failed", exc_info=True)
            error = sanitised_line(f"{type(raised).__name__}: {raised}")
        if not oldest:
            return NoPlan(f"the planner fails even without workers ({error}): please report it"), None, error
        breaker = oldest.pop()
