from collections.abc import Generator
from typing import cast

import pytest

from tests.unit.model.vocabularies import TOKENIZERS
from tpiedge.local.cluster import LocalCluster, collect
from tpiedge.model.output import OutputForm
from tpiedge.wire.control import Finished, Token
from tpiedge.wire.requests import GenerationRequest

REQUEST = GenerationRequest("r-1", (1, 2, 3), 4)


class Said:
    def __init__(self, *events: Token | Finished) -> None:
        self._events = events

    def generate(self, _request: GenerationRequest) -> Generator[Token | Finished]:
        yield from self._events


@pytest.mark.parametrize(("steps", "expected"), [(2, 1.5), (3, 1.0), (0, None)])
def test_answer_reports_tokens_per_step(steps: int, expected: float | None) -> None:
    tokens = [Token(1, "r-1", index, 7 + index, ()) for index in range(3)]
    cluster = Said(*tokens, Finished(1, "r-1", "length", 3, 3, 0, steps))
    answer = collect(cast(LocalCluster, cluster), REQUEST, None, (), lambda _text: None)
    assert (answer.token_ids, answer.finish_reason) == ([7, 8, 9], "length")
    assert answer.tokens_per_step == expected


@pytest.mark.parametrize(("goes_on", "text"), [(True, " house"), (False, "house")])
def test_continued_text_keeps_its_leading_space(goes_on: bool, text: str) -> None:
    tokenizer = TOKENIZERS["byte-fallback"]
    prompt = tuple(tokenizer.encode("the"))
    said = tokenizer.encode("the house")[len(prompt) :]
    tokens = [Token(1, "r-1", index, token, ()) for index, token in enumerate(said)]
    cluster = Said(*tokens, Finished(1, "r-1", "length", len(prompt), len(said), 0, 1))
    request = GenerationRequest("r-1", prompt, 4)
    answer = collect(cast(LocalCluster, cluster), request, tokenizer, (), lambda _text: None, goes_on=goes_on)
    assert answer.text == text


def test_reasoning_in_messages_is_shown_and_no_part_of_the_answer() -> None:
    tokenizer, shown = TOKENIZERS["byte-level"], list[str]()
    said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>the cat"
    ids = tokenizer.encode(said)
    tokens = [Token(1, "r-1", index, token, ()) for index, token in enumerate(ids)]
    cluster = Said(*tokens, Finished(1, "r-1", "length", 3, len(ids), 0, 1))
    speech = OutputForm(thinking="channels")
    answer = collect(cast(LocalCluster, cluster), REQUEST, tokenizer, (), shown.append, speech=speech)
    assert (answer.text, "".join(shown)) == ("the cat", "Hm.\n\nthe cat")
