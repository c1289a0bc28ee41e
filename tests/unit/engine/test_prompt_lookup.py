"""Guesses from a sequence's own text: by hand, against a search through the whole text, and on copied texts."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tpiedge.engine.drafting import Guess, PromptLookup

#: Of few kinds, so that much repeats.
TEXTS = st.lists(st.integers(0, 3), max_size=60)


def guess(text: Sequence[int], most: int = 3) -> Guess:
    return PromptLookup(text).draft(most)


def words(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def letters(guessed: Guess) -> str:
    return "".join(map(chr, guessed.ids))


def test_lookup_continues_after_a_replaced_token() -> None:
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
def test_lookup_uses_the_latest_longest_match(text: list[int], most: int) -> None:
    assert guess(text, most) == by_search(text, most)


@given(text=TEXTS, asked=st.sets(st.integers(0, 60)))
def test_lookup_is_no_worse_after_intermediate_drafts(text: list[int], asked: set[int]) -> None:
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
