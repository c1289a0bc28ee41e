"""Tokens to text up to a stop string: however the text is cut into tokens, the pieces joined are the same."""

from pathlib import Path

import pytest

from tpiedge.model.text import TextWriter
from tpiedge.model.tokenizer import Tokenizer

DEMO = Path(__file__).parents[3] / "tpiedge" / "model" / "demo"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.open(DEMO)


def write(writer, ids):
    """(all the text, whether a stop string ended it)."""
    text = ""
    for token in ids:
        piece, stopped = writer.push(token)
        text += piece
        if stopped:
            return text, True
    piece, stopped = writer.finish()
    return text + piece, stopped


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        ((), ("one \N{GRINNING FACE} two", False)),
        (("\N{GRINNING FACE}",), ("one ", True)),
        (("two three",), ("one \N{GRINNING FACE} two", False)),
        (("wo", "two"), ("one \N{GRINNING FACE} ", True)),
    ],
)
def test_text_ends_at_the_first_stop_string(tokenizer, stops, expected):
    ids = tokenizer.encode("one \N{GRINNING FACE} two", add_special=False)
    assert write(TextWriter(tokenizer, stops), ids) == expected


def test_without_a_tokenizer_there_is_no_text():
    assert write(TextWriter(None, ()), [1, 2, 3]) == ("", False)


def test_special_tokens_that_are_marks_are_shown(tokenizer):
    ids = tokenizer.encode("one<|end|> two", add_special=False)
    assert "<|end|>" in {tokenizer.token(token) for token in tokenizer.special_ids}
    assert write(TextWriter(tokenizer, ()), ids)[0] == "one two"
    assert write(TextWriter(tokenizer, (), marks=("<|end|>", "no token")), ids)[0] == "one<|end|> two"
