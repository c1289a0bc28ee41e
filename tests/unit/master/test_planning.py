"""Whose numbers break the planner, as tables of offers and what breaks it."""

import pytest

from tests.unit.master.players import offer
from tests.unit.master.stories import assignments_of
from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.planning import plan_without_breakers
from tpiedge.master.roster import Machine


class Planner:
    """Fails wherever all workers of one of the `broken` groups are there; the empty group is always there."""

    def __init__(self, *broken: str) -> None:
        self.broken = [set(group) for group in broken]
        self.calls = 0

    def __call__(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments | NoPlan:
        self.calls += 1
        names = [machine.name for machine in machines]
        if any(group <= set(names) for group in self.broken):
            raise OverflowError("cannot convert float\ninfinity")
        return Assignments(assignments_of(*names))


def offered(order: str) -> tuple[Machine, ...]:
    """In the order of their names, with offers that came in this `order`."""
    return tuple(
        Machine(name, offer(name), 0.0, 0.0, offered=float(order.index(name))) for name in sorted(order)
    )


@pytest.mark.parametrize(
    ("order", "broken", "blamed"),
    [
        ("abc", [], ""),
        ("abc", ["c"], "c"),
        ("abc", ["a"], "a"),
        ("cab", ["c"], "c"),
        ("abc", ["ab"], "b"),
        ("bac", ["ab"], "a"),
        ("abcd", ["a", "c"], "ac"),
        ("abc", ["a", "b", "c"], "abc"),
        ("", [], ""),
    ],
)
def test_the_last_offer_that_the_planner_fails_with_is_left_out_and_no_other(
    order: str, broken: list[str], blamed: str
) -> None:
    found, causes = plan_without_breakers(Planner(*broken), offered(order), ())
    assert isinstance(found, Assignments)
    assert [one.machine for one in found.assignments] == ["", *sorted(set(order) - set(blamed))]
    cause = "its numbers break the planner (OverflowError: cannot convert float infinity): please report it"
    assert causes == dict.fromkeys(blamed, cause)


@pytest.mark.parametrize("order", ["", "ab"])
def test_a_planner_that_fails_without_workers_blames_nobody_and_is_asked_once_per_worker(order: str) -> None:
    planner = Planner("")
    found, causes = plan_without_breakers(planner, offered(order), ())
    assert isinstance(found, NoPlan)
    assert found.reason == (
        "the planner fails even without workers (OverflowError: cannot convert float infinity): please report it"
    )
    assert causes == {}
    assert planner.calls == len(order) + 1
