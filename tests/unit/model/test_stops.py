from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.model.vocabularies import TOKENIZERS
from tpiedge.model.tokenizer import TextWriter

TOKENIZER = TOKENIZERS["byte-level"]


def run(stops: Sequence[str], pieces: list[str]) -> tuple[str, str]:
    """(the text, the stop string)"""
    writer, shown = TextWriter(TOKENIZER, stops), ""
    for token in [token for piece in pieces for token in TOKENIZER.encode(piece, add_special=False)]:
        text, stopped = writer.push(token)
        shown += text
        if stopped:
            return shown, writer.stop
    return shown + writer.finish()[0], writer.stop


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
    shown, stop = run(stops, pieces)
    assert shown == cut_by_character(stops, text)
    assert text.startswith(shown + stop)
    assert bool(stop) == any(stop in text for stop in stops)


@pytest.mark.parametrize(
    ("stops", "expected"),
    [((), "one 😀 two"), (("😀",), "one "), (("two three",), "one 😀 two"), (("wo", "two"), "one 😀 ")],
)
def test_a_text_made_of_tokens_is_whole_up_to_the_stop_string(stops: tuple[str, ...], expected: str) -> None:
    text, stop = run(stops, ["one 😀 two"])
    assert (text, bool(stop)) == (expected, expected in ("one ", "one 😀 "))
