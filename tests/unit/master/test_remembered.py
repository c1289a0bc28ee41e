"""What is remembered of ever new names."""

from collections.abc import Callable

import pytest

from tpiedge.joining.members import MAX_MEMBERS
from tpiedge.master.offer_rate import OfferRate
from tpiedge.master.quarantine import Flaps, Quarantine
from tpiedge.master.remembered import REMEMBERED, Remembered


def test_those_are_remembered_of_whom_something_was_noted_last() -> None:
    remembered = Remembered[int]()
    for number in range(REMEMBERED):
        remembered.note(f"w-{number}", number)
    remembered.note("w-0", 7)
    remembered.note("another", 8)
    assert len(remembered) == REMEMBERED
    assert [remembered.get(name) for name in ("w-0", "w-1", "w-2", "another")] == [7, None, 2, 8]
    remembered.forget("w-0")
    remembered.forget("w-0")
    assert (remembered.get("w-0"), len(remembered)) == (None, REMEMBERED - 1)


def test_no_member_is_forgotten_for_another() -> None:
    assert REMEMBERED >= MAX_MEMBERS


def penalise() -> tuple[Callable[[str], object], Remembered]:
    quarantine = Quarantine()
    return lambda name: quarantine.penalise(name, 0.0), quarantine._penalties


def lose() -> tuple[Callable[[str], object], Remembered]:
    flaps = Flaps()
    return lambda name: flaps.lost(name, 0.0), flaps._losses


def offer() -> tuple[Callable[[str], object], Remembered]:
    rate = OfferRate()
    return lambda name: rate.admits(name, 0.0), rate._changes


@pytest.mark.parametrize("known", [penalise, lose, offer])
def test_workers_with_ever_new_names_take_no_more_memory(
    known: Callable[[], tuple[Callable[[str], object], Remembered]],
) -> None:
    happens, remembered = known()
    for number in range(2 * REMEMBERED):
        happens(f"w-{number}")
        happens("w-0")
    assert len(remembered) == REMEMBERED
    assert remembered.get("w-0") is not None
