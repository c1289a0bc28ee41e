"""What a machine's speed is thought to be: bounded, and ever more steady."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.master.players import offer
from tpiedge.master.pace import note_speeds
from tpiedge.master.roster import Machine, Roster


class Shown:
    """A session whose only worker shows this slowdown, whatever is believed; none once it has no part."""

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self.machines = ("w-1",)

    def slowdowns(self, believed: dict[str, float]) -> dict[str, float]:
        assert set(believed) == {"w-1"}
        return dict.fromkeys(self.machines, self.slowdown)


def roster() -> Roster:
    found = Roster(1.5)
    found.offered("w-1", offer("w-1"), 0.0)
    return found


def known(found: Roster) -> Machine:
    (machine,) = found.present
    return machine


@given(st.floats(1e-300, 1e300))
def test_no_slowdown_is_beyond_sixteen_and_what_hardly_differs_is_the_same(slowdown: float) -> None:
    found = roster()
    found.slowed("w-1", slowdown, 1.0)
    assert 1 / 16 <= known(found).slowdown <= 16
    assert abs(2 * math.log2(known(found).slowdown) - round(2 * math.log2(known(found).slowdown))) < 1e-9
    generation = found.generation
    found.slowed("w-1", known(found).slowdown * 1.1, 2.0)
    assert found.generation == generation


def test_who_is_slow_now_and_then_is_so_for_longer_each_time() -> None:
    found, changed = roster(), []
    for second in range(4000):
        before = known(found).slowdown
        shown = Shown(4.0 if second // 40 % 2 else 1.0)
        note_speeds(found, shown.machines, shown.slowdowns, float(second))
        if known(found).slowdown != before:
            changed.append(second)
    assert len(changed) <= 12, "not with each of the hundred changes"
    assert changed[0] <= 80


def test_who_has_no_part_is_tried_again_after_longer_each_time() -> None:
    found, tried = roster(), []
    session = Shown(8.0)
    for second in range(20_000):
        before = known(found).slowdown
        session.machines = ("w-1",) if before < 2 else ()
        note_speeds(found, session.machines, session.slowdowns, float(second))
        if known(found).slowdown < before:
            tried.append(second)
    assert 2 <= len(tried) <= 6
    assert tried[0] == pytest.approx(600, abs=2)


def test_another_offer_is_a_new_beginning() -> None:
    found = roster()
    found.slowed("w-1", 4.0, 1.0)
    found.offered("w-1", offer("w-1", threads=3), 2.0)
    assert (known(found).slowdown, known(found).changes) == (1.0, 0)


def test_an_offer_of_other_memory_is_of_the_same_speed() -> None:
    found = roster()
    found.slowed("w-1", 4.0, 1.0)
    found.offered("w-1", offer("w-1", memory_bytes=5), 2.0)
    assert (known(found).slowdown, known(found).offer.memory_bytes) == (4.0, 5)
