"""Sizes, times and counts as people read them."""

import pytest

from tpiedge.units import counted, format_seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.00004, "0.04 ms"),
        (0.00035, "0.35 ms"),
        (0.0012, "1.2 ms"),
        (0.00996, "10 ms"),
        (0.0123, "12 ms"),
        (0.5, "500 ms"),
        (2.04, "2.0 s"),
        (95.0, "1 min 35 s"),
    ],
)
def test_seconds_have_two_digits_at_least(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (0, ("node",), "0 nodes"),
        (1, ("node",), "1 node"),
        (2, ("FFN tile",), "2 FFN tiles"),
        (1, ("process", "processes"), "1 process"),
        (3, ("process", "processes"), "3 processes"),
    ],
)
def test_one_is_no_plural(count: int, words: tuple[str, ...], text: str) -> None:
    assert counted(count, *words) == text
