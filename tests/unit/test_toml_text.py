"""TOML of strangers takes no time to speak of, and what is wrong with it is one short line."""

import time

import pytest

from tpiedge.errors import UserError
from tpiedge.toml_text import parse_toml


def test_what_is_in_order_is_read() -> None:
    assert parse_toml('[a.b]\nc = "x.y"\n', "t.toml") == {"a": {"b": {"c": "x.y"}}}


@pytest.mark.parametrize("text", ["[" + "a." * 60_000, ".".join("a" * 60_000) + " = 1"], ids=["table", "key"])
def test_names_of_many_parts_are_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(UserError, match=r"^t\.toml has more than 256 dots in line 2$"):
        parse_toml("\n" + text, "t.toml")
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "text", [f"[{'я' * 9000}]\n" * 2, f"a = {'9' * 5000}", "x = " + "[" * 5000, f"{'x' * 9000} = 1\n" * 2]
)
def test_a_refusal_is_short_however_long_the_names(text: str) -> None:
    with pytest.raises(UserError, match=r"^t\.toml is not valid TOML: ") as caught:
        parse_toml(text, "t.toml")
    assert len(str(caught.value)) < 300


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(UserError, match=r"\.\.\..*\(at line 2, column \d+\)$"):
        parse_toml(f"[{'x' * 9000}]\n" * 2, "t.toml")
