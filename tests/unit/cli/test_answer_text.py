"""Words on lines, and an answer that runs in circles."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.cli.terminal import LoopWatch, WordWrap

_BACK = re.compile(r"\x1b\[(\d+)D\x1b\[K")


def one_cell(_mark: str) -> int:
    return 1


def screen(written: str) -> list[str]:
    """The lines of a terminal on which this was written."""
    lines = [""]
    at = 0
    while at < len(written):
        back = _BACK.match(written, at)
        if back:
            assert int(back[1]) <= len(lines[-1])
            lines[-1] = lines[-1][: -int(back[1])]
            at = back.end()
        elif written[at] == "\n":
            lines.append("")
            at += 1
        else:
            lines[-1] += written[at]
            at += 1
    return lines


def shown(text: str, columns: int, pieces: int = 1) -> list[str]:
    wrap = WordWrap(columns, one_cell)
    return screen("".join(wrap.push(text[at : at + pieces]) for at in range(0, len(text), pieces)))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three", ["one two ", "three"]),
        ("one two  ", ["one two  "]),
        ("one two six", ["one two ", "six"]),
        ("abcdefghijklmno", ["abcdefghi", "jklmno"]),  # longer than a line
        ("ab cdefghijklmno", ["ab ", "cdefghijk", "lmno"]),
        ("one\ntwo\n\nsix", ["one", "two", "", "six"]),
        ("a\tb", ["a    b"]),
        ("123456789 next", ["123456789", "next"]),  # the edge parts them
        ("", [""]),
    ],
)
def test_a_word_is_not_cut_at_the_edge(text: str, lines: list[str]) -> None:
    for pieces in (1, 2, 100):
        assert shown(text, 10, pieces) == lines


@given(st.text("ab \n", max_size=80), st.integers(1, 12), st.integers(1, 5))
def test_no_line_is_too_long_and_nothing_is_lost(text: str, columns: int, pieces: int) -> None:
    lines = shown(text, columns, pieces)
    assert all(len(line) <= max(columns - 1, 1) for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_wide_characters_take_two_columns() -> None:
    wrap = WordWrap(6, lambda mark: 2 if mark == "語" else 1)
    assert screen(wrap.push("語語 語語")) == ["語語 ", "語語"]


def watched(text: str) -> int:
    """How often the text is said to repeat itself."""
    watch = LoopWatch()
    return sum(watch.push(text[at : at + 3]) for at in range(0, len(text), 3))


@pytest.mark.parametrize(
    "text",
    [
        "He went to the sea. " * 20,
        "Once there was a boy. " + "la " * 200,
        "a" * 400,
        ("It was a fine day, and the sun was up. " * 4 + "\n") * 6,
        "x" * 1000 + " One, two, three and four and five; the small boat was on the water again.\n" * 5,
    ],
)
def test_the_same_again_and_again_is_told_once(text: str) -> None:
    assert watched(text) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-" * 500,  # a rule
        " \n" * 300,
        "He went to the sea. " * 3,
        "".join(f"line {number}: x = {number * 7}\n" for number in range(100)),
        "|---|---|\n" * 60,
    ],
)
def test_other_text_is_not(text: str) -> None:
    assert watched(text) == 0
