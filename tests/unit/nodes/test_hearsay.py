"""Words of other machines are one short line, whatever they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.nodes.hearsay import hearsay


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("its process was killed by SIGKILL", "its process was killed by SIGKILL"),
        ("", ""),
        ("two\nlines\r", "two lines"),
        ("\x1b[2Jgone", "[2Jgone"),
        ("\u202eright to left", "right to left"),
        ("größer", "größer"),
        ("x" * 5000, "x" * 1000),
    ],
)
def test_a_line(said: str, shown: str) -> None:
    assert hearsay(said) == shown


@given(st.text())
def test_any_text(said: str) -> None:
    assert hearsay(said).isprintable()
    assert len(hearsay(said)) <= 1000
    assert hearsay(hearsay(said)) == hearsay(said)
