"""Guesses from a sequence's own text: by hand, against a search through the whole text, and on copied texts."""

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tpiedge.engine.drafting import Guess, PromptLookup

#: Of few kinds, so that much repeats.
TEXTS = st.lists(st.integers(0, 3), max_size=60)


def guess(text: Sequence[int], most: int = 3) -> Guess:
    return PromptLookup(text).draft(most)


def words(text: str) -> list[int]:
    """A token per letter."""
    return [ord(letter) for letter in text]


def letters(guessed: Guess) -> str:
    return "".join(map(chr, guessed.ids))


def test_a_token_that_was_replaced() -> None:
    lookup = PromptLookup(words("the old house stood by the road; the "))
    lookup.draft(1)
    for token in words("old house st"):
        lookup.append(token)
    assert letters(lookup.draft(4)) == "ood "
    lookup.append(ord("A"))
    assert letters(lookup.draft(4)) == "od b", "in step with the text, as if only this token were another"
    lookup.append(ord("A"))
    lookup.append(ord("d"))
    assert letters(lookup.draft(4)) == " by ", "after the same token nearby"


def by_search(text: Sequence[int], most: int) -> Guess:
    """The first law, slowly: every earlier place, the latest first."""
    best, longest = 0, 1
    for place in range(len(text) - 1, 1, -1):
        length = 0
        while length < min(place, 32) and text[place - 1 - length] == text[len(text) - 1 - length]:
            length += 1
        if length > longest:
            best, longest = place, length
    if not best:
        return Guess()
    found = list(text)
    for i in range(most):
        found.append(found[best + i])
    return Guess(tuple(found[len(text) :]), longest)


@given(text=TEXTS, most=st.integers(1, 20))
def test_it_is_the_latest_of_the_longest_matches(text: list[int], most: int) -> None:
    """The texts are short enough that the search sees every place."""
    assert guess(text, most) == by_search(text, most)


@given(text=TEXTS, asked=st.sets(st.integers(0, 60)))
def test_guesses_on_the_way_are_at_least_as_good(text: list[int], asked: set[int]) -> None:
    """A match that is followed is not given up for a shorter one; guesses are tokens of the text."""
    lookup = PromptLookup()
    for i, token in enumerate(text):
        lookup.append(token)
        if i in asked:
            found = lookup.draft(4)
            assert set(found.ids) <= set(text[: i + 1])
            assert len(found.ids) in (0, 4)
    best = by_search(text, 4)
    found = lookup.draft(4)
    assert min(found.matched, 32) >= best.matched
    if best.ids:
        tail = text[len(text) - min(found.matched, 32) :]
        places = range(len(text) - len(tail))
        followed = [text[place + len(tail)] for place in places if text[place : place + len(tail)] == tail]
        assert found.ids[0] in followed


def accepted_in_steps(prompt: Sequence[int], answer: Sequence[int], most: int) -> tuple[int, int]:
    """(Steps, accepted tokens) where every guess is drafted."""
    lookup = PromptLookup(prompt)
    steps = accepted = done = 0
    while done < len(answer):
        right = 0
        rest = answer[done:]
        for drafted, token in zip(lookup.draft(most).ids, rest, strict=False):
            if drafted != token:
                break
            right += 1
        came = rest[: right + 1]
        for token in came:
            lookup.append(token)
        done += len(came)
        accepted += right
        steps += 1
    return steps, accepted


def test_a_text_rewritten_with_a_word_changed_here_and_there() -> None:
    draw = random.Random(1)
    text = [min(int(draw.paretovariate(0.7)), 30_000) for _ in range(400)]
    answer = list(text)
    for place in range(20, 400, 40):
        answer[place] = 40_000 + place
    steps, accepted = accepted_in_steps([*text, 1, 2], answer, 15)
    changes = 10
    assert accepted >= 400 - steps
    assert steps <= 400 / 16 + 2.5 * changes, "after a change the copy is guessed again at once"
