from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.master.stories import request
from tpiedge.master.journal import POISON_AFTER, QUARANTINE_AFTER, PendingAnswer
from tpiedge.wire.control import PromptScores, Token
from tpiedge.wire.requests import GenerationRequest, Sampling

SAMPLED = GenerationRequest("r-1", (1, 2, 3), 8, Sampling(temperature=1.0, seed=7), (9,))


def accepted(request: GenerationRequest) -> PendingAnswer:
    return PendingAnswer(request, "", lambda _: None, lambda: None)


def token(index: int, token_id: int = 5) -> Token:
    return Token(1, "r-1", index, token_id, ())


@given(st.lists(st.integers(0, 6), max_size=40))
def test_journal_passes_each_token_once_in_order(indices: list[int]) -> None:
    journal = accepted(SAMPLED)
    passed = [new.index for index in indices if isinstance(new := journal.append(token(index)), Token)]
    assert passed == list(range(len(passed)))
    assert journal.answer_ids == [5] * len(passed)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4)), max_size=30))
def test_journal_passes_each_score_once_in_order(said: list[tuple[int, int]]) -> None:
    """The score of a position is its number."""
    journal = accepted(replace(SAMPLED, prompt_scores=True))
    passed: list[float] = []
    for first, count in said:
        scores = tuple(float(first + n) for n in range(count))
        likeliest = tuple((7 + which, score) for score in scores for which in range(2))
        new = journal.append(PromptScores(1, "r-1", first, scores, likeliest))
        if isinstance(new, PromptScores):
            assert new.first == len(passed) + 1
            assert new.likeliest == tuple((7 + which, score) for score in new.scores for which in range(2))
            passed += new.scores
    assert passed == [float(n) for n in range(1, len(passed) + 1)]


@pytest.mark.parametrize(
    ("tokens", "ignore_eos", "reason"),
    [
        ((), False, None),
        ((4,), False, None),
        ((4, 9), False, "stop"),
        ((4, 9), True, None),
        ((4,) * 8, False, "length"),
    ],
)
def test_answer_is_finished_at_a_stop_token_or_length_limit(
    tokens: tuple[int, ...], ignore_eos: bool, reason: str | None
) -> None:
    journal = accepted(replace(SAMPLED, ignore_eos=ignore_eos))
    for index, token_id in enumerate(tokens):
        journal.append(token(index, token_id))
    assert journal.finish_reason == reason


@given(st.lists(st.booleans(), max_size=8))
def test_restored_answer_does_not_repeat_earlier_events(scores: list[bool]) -> None:
    """Each part is a token, or the score of the prompt's next position."""
    said: list[Token | PromptScores] = []
    for one in scores:
        known = sum(isinstance(part, PromptScores) for part in said)
        said.append(PromptScores(0, "r-1", known + 1, (0.5,)) if one else token(len(said) - known))
    journal = accepted(replace(SAMPLED, prompt_scores=True))
    journal.restore(said, 3.0)
    assert journal.answer_ids == [5] * scores.count(False)
    assert journal.rest.answer_ids == tuple(journal.answer_ids)
    assert [journal.append(message) for message in said] == [None] * len(said)
    assert journal.begun
    assert journal.paused == 3.0
    assert not journal.quarantined


def dies(journal: PendingAnswer, *, tokens: int, alone: bool = True) -> None:
    for _ in range(tokens):
        journal.append(token(len(journal.answer_ids)))
    journal.died(alone=alone)
    journal.interrupted(0.0, "loss")


def test_request_is_poison_only_after_a_death_while_alone() -> None:
    journal = accepted(request())
    for number in range(1, 3 * POISON_AFTER):
        dies(journal, tokens=0, alone=False)
        assert journal.quarantined == (number >= QUARANTINE_AFTER)
        assert not journal.poison
    dies(journal, tokens=0)
    assert journal.poison


def test_new_tokens_between_deaths_count_as_progress() -> None:
    journal = accepted(request())
    for _ in range(POISON_AFTER - 1):
        dies(journal, tokens=0)
    assert journal.quarantined
    dies(journal, tokens=2)
    assert not journal.quarantined
    for _ in range(3 * POISON_AFTER):
        assert not journal.poison
        dies(journal, tokens=1)
    assert journal.poison, "the first token comes of the prompt alone"
