"""The sections of a tokenizer.json are those that a parser of JSON finds."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.model.tokenizer_sections import sections

SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
MEMBERS = st.dictionaries(st.text(max_size=4), VALUES, max_size=5)


def scalars(model: dict[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, list | dict) else value for key, value in model.items()}


@given(MEMBERS, MEMBERS, st.booleans(), st.sampled_from([None, 0, 3]))
def test_they_are_what_a_parser_finds(
    beside: dict[str, Any], model: dict[str, Any], plain: bool, indent: int | None
) -> None:
    whole = beside | {"model": model}
    data = json.dumps(whole, ensure_ascii=plain, indent=indent).encode("utf-8", "surrogatepass")
    assert sections(data) == whole | {"model": scalars(model)}


@pytest.mark.parametrize("model", ["[]", "null", "3", '"x"', "[{}]"])
def test_a_model_that_is_no_object_has_no_members(model: str) -> None:
    assert sections(f'{{"model": {model}}}'.encode()) == {"model": None}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model": {"a": 1, "\\u0061": 2}}', "twice"),
        ('{"a": 1, "\\u0061": 2}', "twice"),
        ('{"model": {}, "model": {}}', "twice"),
        (json.dumps({"model": {str(number): 1 for number in range(101)}}), "too many"),
        (json.dumps({str(number): 1 for number in range(101)}), "too many"),
        (json.dumps({"x" * 200_000: 1}), "no key"),
        (json.dumps({"model": {"a": "x" * 200_000}}), "200002 bytes"),
        ('{"model": {"a": 1', "unfinished"),
        ('{"model": {"a": [1}}', "no"),
        ("{1: 2}", "no key"),
        ("[]", "no {"),
    ],
)
def test_anything_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sections(text.encode())
