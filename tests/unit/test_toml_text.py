"""TOML of strangers takes no time to speak of, and what is wrong with it is one short line."""

import time

import pytest

from tpiedge.errors import UserError
from tpiedge.toml_text import parse_toml


def test_what_is_in_order_is_read() -> None:
    assert parse_toml('[a.b]\nc = "x.y"\n', "t.toml") == {"a": {"b": {"c": "x.y"}}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" + "a." * 4_000, "256 dots in line 2"),
        (".".join("a" * 4_000) + " = 1", "256 dots in line 2"),
        ('"\u2028".' * 4_000 + "a = 1", "256 dots in line 2"),
        (".".join("a" * 60_000) + " = 1", "8192 dots"),
        (f"[{'q.' * 250}q]\n" + "".join(f"{'a.' * 250}b{n} = 1\n" for n in range(400)), "8192 dots"),
    ],
    ids=["table", "key", "quoted", "long", "many"],
)
def test_names_of_many_parts_are_refused_at_once(text: str, words: str) -> None:
    began = time.process_time()
    with pytest.raises(UserError, match=rf"^t\.toml has more than {words}$"):
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
