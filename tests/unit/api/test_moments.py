"""How much time passed between two masters, of which one may have begun with a wrong clock."""

import pytest

from tpiedge.api import moments
from tpiedge.api.moments import ACROSS_BOOTS_S, Moment, this_moment

DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("earlier", "later", "passed_s"),
    [
        (Moment("a", 10.0, 0.0), Moment("a", 15.0, 1.8e9), 5.0),
        (Moment("a", 10.0, 1.8e9), Moment("a", 15.0, 0.0), 5.0),
        (Moment("a", 10.0, 1.8e9), Moment("a", 10.0 + 9 * DAY_S, 1.8e9), 9 * DAY_S),
        (Moment("a", 10.0, 1.8e9), Moment("b", 5.0, 1.8e9 + 60.0), 60.0),
        (Moment("a", 10.0, 0.0), Moment("b", 5.0, 1.8e9), ACROSS_BOOTS_S),
        (Moment("a", 10.0, 1.8e9), Moment("b", 5.0, 0.0), 0.0),
        (Moment("", 10.0, 1.8e9), Moment("", 15.0, 1.8e9 + 60.0), 60.0),
    ],
    ids=[
        "set",
        "set back",
        "long",
        "next boot",
        "set at the next boot",
        "lost at the next boot",
        "no boot known",
    ],
)
def test_what_passed_is_what_is_certain(earlier: Moment, later: Moment, passed_s: float) -> None:
    assert later.since(earlier) == passed_s


def test_this_boot_has_a_name_and_a_time_that_goes_on() -> None:
    first, second = this_moment(), this_moment()
    assert first.boot == second.boot != ""
    assert 0 <= second.since(first) < ACROSS_BOOTS_S


def test_a_system_that_names_no_boot_counts_by_the_day(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "_BOOT_ID", tmp_path / "none")
    assert this_moment().boot == ""
