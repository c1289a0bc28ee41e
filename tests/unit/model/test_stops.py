"""Stop strings: the cut does not depend on how the text arrives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.model.vocabularies import TOKENIZERS
from tpiedge.model.tokenizer import StopMatcher, TextWriter


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops)
    shown = []
    for piece in pieces:
        text, stopped = matcher.feed(piece)
        shown.append(text)
        if stopped:
            return shown, True
    return [*shown, matcher.finish()], False


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


@pytest.mark.parametrize(
    ("stops", "expected"),
    [((), "one 😀 two"), (("😀",), "one "), (("two three",), "one 😀 two"), (("wo", "two"), "one 😀 ")],
)
def test_a_text_made_of_tokens_is_whole_up_to_the_stop_string(stops: tuple[str, ...], expected: str) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    writer, text = TextWriter(tokenizer, stops), ""
    for token in tokenizer.encode("one 😀 two", add_special=False):
        piece, stopped = writer.push(token)
        text += piece
        if stopped:
            break
    else:
        text += writer.finish()[0]
    assert (text, bool(writer.stop)) == (expected, expected in ("one ", "one 😀 "))
