import re
from collections.abc import Callable
from math import inf, nan

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tpiedge import units
from tpiedge.errors import UserError


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
def test_format_seconds_rounds_to_expected_digits(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


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
def test_counted_uses_singular_for_one(count: int, words: tuple[str, ...], text: str) -> None:
    assert units.counted(count, *words) == text


@pytest.mark.parametrize(
    ("write", "number", "text"),
    [
        (units.format_seconds, inf, "over 30 years"),
        (units.format_seconds, 1e300, "over 30 years"),
        (units.format_seconds, -inf, "-over 30 years"),
        (units.format_seconds, nan, "an unknown time"),
        (units.format_seconds, -5.0, "-5.0 s"),
        (units.format_seconds, 999_999_999, "16666666 min 39 s"),
        (units.format_age, inf, "over 30 years ago"),
        (units.format_age, nan, "at an unknown time"),
        (units.format_age, -inf, "just now"),
        (units.format_bytes, inf, "over a billion TB"),
        (units.format_bytes, nan, "an unknown size"),
        (units.format_bytes, -1500.0, "-1.5 kB"),
        (units.format_bytes, 10**400, "over a billion TB"),
        (units.format_least, 1_000_001, "2 MB"),
        (units.format_least, 1.5e6, "2 MB"),
        (units.format_least, inf, "over a billion TB"),
        (units.format_least, nan, "an unknown size"),
    ],
)
def test_extreme_numbers_are_formatted(write: Callable[[float], str], number: float, text: str) -> None:
    assert write(number) == text


@given(st.one_of(st.floats(), st.integers()))
@example(10**400)
@example(-(10**400))
def test_every_number_has_a_short_format(number: float) -> None:
    for write in (units.format_seconds, units.format_age, units.format_bytes, units.format_least):
        assert 0 < len(write(number)) < 30


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *(
            (text, f"{text} has no unit: did you mean {text}GB?")
            for text in ("0.5", "0.001", "1.5", "4", "50")
        ),
        ("512", "512 has no unit: did you mean 512MB?"),
        ("0.0001KB", "0.0001KB is less than a byte"),
    ],
)
def test_missing_unit_gets_plausible_suggestion(text: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("start", "stop", "words"), [(0, 4, "0-3"), (4, 5, "4"), (9, 12, "9-11"), (5, 5, "-"), (0, 0, "-")]
)
def test_format_range_shows_both_ends(start: int, stop: int, words: str) -> None:
    assert units.format_range(start, stop) == words
