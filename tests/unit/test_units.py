"""Sizes and times as people read them."""

import pytest

from tpiedge.units import format_seconds


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
