"""What the planner predicts for one machine less or one more: pure functions of the placement function."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.planning import PlaceNodes, plan_without_breakers
from tpiedge.master.roster import Machine

_ANOTHER = "another"


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


def without(place: PlaceNodes, machines: Sequence[Machine], name: str) -> Forecast:
    """The best plans with all `machines`, which may be in plans now, and without the one of that name."""
    now = _plan(place, machines)
    return _forecast(now, _plan(place, [one for one in machines if one.name != name]), _has(now, name))


def with_another(place: PlaceNodes, machines: Sequence[Machine]) -> Forecast:
    """The best plans with all `machines`, of which there is one at least, and with one more like the last."""
    another = replace(machines[-1], name=_ANOTHER, claim=None)
    then = _plan(place, [*machines, another])
    return _forecast(_plan(place, machines), then, _has(then, _ANOTHER))


def _plan(place: PlaceNodes, machines: Sequence[Machine]) -> Assignments | NoPlan:
    """Without regard to what serves: the question is what is best."""
    found, _ = plan_without_breakers(place, tuple(machines), ())
    return found


def _has(plan: Assignments | NoPlan, name: str) -> bool:
    return isinstance(plan, Assignments) and any(one.machine == name for one in plan.assignments)


def _forecast(now: Assignments | NoPlan, then: Assignments | NoPlan, takes_part: bool) -> Forecast:
    return Forecast(
        now.step_s if isinstance(now, Assignments) else None,
        then.step_s if isinstance(then, Assignments) else None,
        len(then.assignments) if isinstance(then, Assignments) else 0,
        takes_part,
        then.reason if isinstance(then, NoPlan) else "",
    )
