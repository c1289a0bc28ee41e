"""The tool that holds conversations tells answers apart."""

from dataclasses import replace

import pytest

from tools.converse import Exchange

ANSWER = Exchange({}, text="a b c", logprobs=[1, 2, 3], finish_reason="stop")
#: Its client left after two tokens.
LEFT = replace(ANSWER, left=True, text="a b", logprobs=[1, 2], finish_reason=None)


@pytest.mark.parametrize("seen", [ANSWER, LEFT, replace(LEFT, text="", logprobs=[])])
def test_equal_answers(seen: Exchange) -> None:
    assert seen.difference(ANSWER) is None


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (replace(ANSWER, text="a b d"), "'a b d'"),
        (replace(ANSWER, text="a b"), "'a b'"),
        (replace(ANSWER, finish_reason="length"), "length"),
        (replace(ANSWER, logprobs=[1, 2, 4]), "log probabilities"),
        (replace(ANSWER, logprobs=[1, 2]), "log probabilities"),
        (replace(LEFT, text="a c"), "'a c'"),
        (replace(LEFT, logprobs=[1, 3]), "log probabilities"),
        (replace(ANSWER, error="503"), "503"),
    ],
)
def test_other_answers(seen: Exchange, words: str) -> None:
    assert words in (seen.difference(ANSWER) or "")


def test_an_answer_alone_that_fails_is_a_difference() -> None:
    assert ANSWER.difference(replace(ANSWER, error="503")) == "alone: 503"
