"""Events of a cluster as an answer: its tokens, why it ended, and how many tokens a step gave."""

from collections.abc import Generator
from typing import cast

import pytest

from tpiedge.local.answer import collect
from tpiedge.local.cluster import LocalCluster
from tpiedge.wire.control import Finished, Token
from tpiedge.wire.requests import GenerationRequest

REQUEST = GenerationRequest("r-1", (1, 2, 3), 4)


class Said:
    """A cluster that says these events."""

    def __init__(self, *events: Token | Finished) -> None:
        self._events = events

    def generate(self, _request: GenerationRequest) -> Generator[Token | Finished]:
        yield from self._events


@pytest.mark.parametrize(("steps", "expected"), [(2, 1.5), (3, 1.0), (0, None)])
def test_an_answer_says_how_many_tokens_a_step_gave(steps: int, expected: float | None) -> None:
    tokens = [Token(1, "r-1", index, 7 + index, ()) for index in range(3)]
    cluster = Said(*tokens, Finished(1, "r-1", "length", 3, 3, 0, steps))
    answer = collect(cast(LocalCluster, cluster), REQUEST, None, (), lambda _text: None)
    assert (answer.token_ids, answer.finish_reason) == ([7, 8, 9], "length")
    assert answer.tokens_per_step == expected
