"""Answers as bytes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.api.frames import json_bytes, json_parts

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
)


@given(VALUES)
def test_parts_of_a_value_are_its_bytes(value: object) -> None:
    assert b"".join(json_parts(value)) == json_bytes(value)


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 256, 1000])
def test_long_lists_have_many_parts(count: int) -> None:
    """Each a few milliseconds' work, wherever the list is."""
    value = {"choices": [{"scores": [{"a": number, "b": [1.5]} for number in range(count)]}], "more": "x"}
    parts = list(json_parts(value))
    assert json.loads(b"".join(parts)) == value
    assert b"".join(parts) == json_bytes(value)
    assert max(len(part) for part in parts) < 128 * 32
