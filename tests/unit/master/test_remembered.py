"""What is remembered of ever new names."""

from tpiedge.joining.members import MAX_MEMBERS
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
