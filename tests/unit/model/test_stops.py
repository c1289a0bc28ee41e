"""Stop strings: the cut does not depend on how the text arrives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import UserError
from tpiedge.model.text import StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops)
    shown = []
    for piece in pieces:
        text, stopped = matcher.feed(piece)
        shown.append(text)
        if stopped:
            return shown, True
    return [*shown, matcher.finish()], False


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "stopped"),
    [
        ([], ["a", "b"], ["a", "b", ""], False),
        (["x"], ["abc"], ["abc", ""], False),
        (["END"], ["one ", "E", "N", "D two"], ["one ", "", "", ""], True),
        (["END"], ["one E", "N", "E"], ["one ", "", "EN", "E"], False),
        (["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", ""], True),
        (["aab"], ["aa", "ab"], ["", "a"], True),
        (["abcd", "bc"], ["abc"], ["a"], True),
        (["bc", "abc"], ["abc"], [""], True),
        (["</s>"], ["x</", "p>"], ["x", "</p>", ""], False),
        (["."], ["No. Yes."], ["No"], True),
        (["é😀"], ["caf", "é", "😀!"], ["caf", "", ""], True),
    ],
)
def test_cases(stops: list[str], pieces: list[str], shown: list[str], stopped: bool) -> None:
    assert run(stops, pieces) == (shown, stopped)


def test_after_the_stop_nothing_is_shown() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.feed("ax") == ("a", True)
    assert matcher.feed("more") == ("", True)
    assert matcher.finish() == ""


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(UserError, match="empty"):
        StopMatcher(["a", ""])


def cut_by_character(stops: list[str], text: str) -> str:
    """The definition: read characters until the text ends with a stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


LETTERS = st.text("ab", max_size=12)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4), pieces=st.lists(LETTERS, max_size=6)
)
@pytest.mark.fault("H11", "no part of a stop string is shown")
def test_the_cut_is_where_the_definition_says(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    shown, stopped = run(stops, pieces)
    assert "".join(shown) == cut_by_character(stops, text)
    assert stopped == any(stop in text for stop in stops)
