"""Drafts tokens from a sequence's own text (prompt lookup decoding), and decides how many drafts a step takes. Pure.

1. A guess repeats the tokens after an earlier match of the text's end. The longest match counts. Of equally long
   matches, the latest counts. Without a match, the guess continues near the place where a long match just failed. The
   batcher limits a guess to `MAX_DRAFTED` tokens.
2. A step takes the guesses that maximise its expected tokens per second.
3. Drafts may delay an answer. The limit is the fraction `_RISK` of the answer's time without drafts, plus the time of
   `_CREDIT` tokens. Time that earlier drafts saved raises the limit, by at most the time of `_GAINED` tokens.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from operator import mul
from typing import Final

from tpiedge.engine.step_cost import StepCost

_HASHES: Final = 1 << 14
_CANDIDATES: Final = 64
_ENOUGH: Final = 32
#: After a match of `_TRUSTED` tokens failed, guesses continue within `_REACH` tokens of the failed place.
_TRUSTED: Final = 4
_REACH: Final = 8


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next. The first `sure` tokens are certain. `matched` is the length of the match before
    `ids`."""

    ids: tuple[int, ...] = ()
    matched: int = 0
    sure: int = 0


NO_GUESS: Final = Guess()


class PromptLookup:
    """Finds earlier matches of the text's end by token pairs, as LZ77 does."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._ids = array("I")
        self._heads = array("i", bytes(4 * _HASHES))  # a pair's latest end, by hash
        self._earlier = array("i", (0, 0))  # an end's previous one
        # Place of the token that should come next, and the length of its match. 0: unknown.
        self._place = self._matched = 0
        # Place of the expected token that did not come, and how many tokens ago that was.
        self._lost = self._strayed = 0
        for token in ids:
            self.append(token)

    def append(self, token: int) -> None:
        ids = self._ids
        end = len(ids)
        if end >= 2:  # a pair is added after its successor came, so the text's end does not find itself
            hashed = _hash(ids[end - 2], ids[end - 1])
            self._earlier.append(self._heads[hashed])
            self._heads[hashed] = end
        ids.append(token)
        self._follow(token)

    def draft(self, most: int) -> Guess:
        self._find()
        if not self._place or most < 1:
            return NO_GUESS
        ids = self._ids[self._place : self._place + most].tolist()
        for i in range(most - len(ids)):
            ids.append(ids[i])
        return Guess(tuple(ids), self._matched)

    def _follow(self, token: int) -> None:
        if self._lost:
            self._strayed += 1
            if self._strayed > _REACH:
                self._lost = 0
        if not self._place:
            return
        if self._ids[self._place] == token:
            self._place += 1
            self._matched += 1
            if self._matched >= _TRUSTED:
                self._lost = 0
            return
        if self._matched >= _TRUSTED:
            self._lost, self._strayed = self._place, 1
        self._place = self._matched = 0

    def _find(self) -> None:
        if self._matched >= _ENOUGH:
            return
        place, matched = self._longest()
        if matched >= max(2, self._matched):
            self._place, self._matched = place, matched
        elif not self._place and self._lost:
            self._place, self._matched = self._beside()

    def _longest(self) -> tuple[int, int]:
        """Returns (place, length) of the longest earlier match, or (0, 0)."""
        ids, best, longest = self._ids, 0, 1
        last = len(ids) - 1
        if last < 1:
            return 0, 0
        end = self._heads[_hash(ids[last - 1], ids[last])]
        for _ in range(_CANDIDATES):
            if not end:
                break
            if end > longest and ids[end - 1 - longest] == ids[last - longest]:
                length = self._common(end)
                if length > longest:
                    best, longest = end, length
                    if length >= _ENOUGH:
                        break
            end = self._earlier[end]
        return best, longest if best else 0

    def _common(self, end: int) -> int:
        ids, beyond = self._ids, len(self._ids)
        most = min(_ENOUGH, end)
        length = 0
        while length < most and ids[end - 1 - length] == ids[beyond - 1 - length]:
            length += 1
        return length

    def _beside(self) -> tuple[int, int]:
        """Returns (place near the failed place, length of the match there)."""
        ids, latest = self._ids, self._ids[-1]
        in_step = self._lost + self._strayed
        near = range(self._lost, min(self._lost + _REACH, len(ids) - 1))
        same = [place for place in near if ids[place] == latest]
        if same:
            return min(same, key=lambda place: abs(place + 1 - in_step)) + 1, 1
        return in_step, 0


def _hash(first: int, second: int) -> int:
    return (first * 0x9E3779B1 ^ second * 0x85EBCA77) >> 7 & _HASHES - 1


_RISK: Final = 0.02
_CREDIT: Final = 0.75
_GAINED: Final = 8.0
#: One step may lose this part of the time that may be lost, so that some is left.
_STAKE: Final = 0.75
#: Less likely tokens are never drafted.
_LEAST_CHANCE: Final = 0.05
#: Prior chances that the next guessed token is right after 0, 1, 2 to 3, 4 to 7, ... matching tokens.
_EXPECTED: Final = (0.5, 0.5, 0.5, 0.75, 0.9, 0.95, 0.97)
#: A prior weighs as much as `_WEIGHT` observations; each new observation multiplies earlier ones by `_FADING`.
_WEIGHT: Final = 3.0
_FADING: Final = 0.97


class DraftLength:
    def __init__(self) -> None:
        #: By kind of match length (`_kind`): guessed tokens seen, and the right ones among them.
        self._seen = [_WEIGHT] * len(_EXPECTED)
        self._right = [_WEIGHT * expected for expected in _EXPECTED]
        #: Seconds: lost by drafts beyond their gain; of the answer without drafts; of one token without drafts.
        self._lost_s = self._plain_s = self._token_s = 0.0

    def chances(self, guess: Guess) -> Iterator[float]:
        """Yields the probabilities that the first 1, 2, 3, ... tokens of the guess are all right."""
        kinds = [_kind(guess.matched + i) for i in range(guess.sure, len(guess.ids))]
        sure = [1.0] * min(guess.sure, len(guess.ids))
        return accumulate(sure + [self._right[kind] / self._seen[kind] for kind in kinds], mul)

    @property
    def affordable_s(self) -> float:
        left_s = _RISK * self._plain_s + _CREDIT * self._token_s - self._lost_s
        return max(0.0, _STAKE * left_s)

    def taken(self, seconds: float, token_s: float) -> None:
        """Records a step's estimates. `seconds` is the extra time for this sequence's drafts, and `token_s` the time of
        a token without drafts."""
        self._token_s = token_s
        self._plain_s += token_s
        self._lost_s += seconds

    def learn(self, guess: Guess, tokens: Sequence[int]) -> None:
        """Compares the guess with the tokens that were drawn (at least one)."""
        for i, (guessed, token) in enumerate(zip(guess.ids, tokens, strict=False)):
            if i >= guess.sure:
                kind = _kind(guess.matched + i)
                self._seen[kind] = _FADING * self._seen[kind] + 1
                self._right[kind] = _FADING * self._right[kind] + (guessed == token)
            if guessed != token:
                break
        gained_s = (len(tokens) - 1) * self._token_s
        self._plain_s += gained_s
        self._lost_s = max(self._lost_s - gained_s, -_GAINED * self._token_s)


def _kind(matched: int) -> int:
    return min(matched.bit_length(), len(_EXPECTED) - 1)


def allot(bids: Sequence[tuple[DraftLength, Guess]], rows: int, cost: StepCost, most: int) -> list[int]:
    """Returns how many tokens of each guess to take. Takes at most `most` tokens in all. Records the cost of drafts.
    `bids` has one entry per decoding sequence. `rows` counts rows without drafts."""
    counts = [0] * len(bids)
    plain_s = cost.seconds(rows)
    if plain_s is None:
        return counts
    likeliest = _likeliest(bids, rows, cost)[:most]
    for _, index in likeliest[: _best(likeliest, rows, cost, plain_s)]:
        counts[index] += 1
    drafted = sum(counts)
    extra_s = (cost.seconds(rows + drafted) or plain_s) - plain_s
    for (drafting, _), count in zip(bids, counts, strict=True):
        drafting.taken(extra_s * count / max(1, drafted), plain_s / rows)
    return counts


def _likeliest(
    bids: Sequence[tuple[DraftLength, Guess]], rows: int, cost: StepCost
) -> list[tuple[float, int]]:
    found: list[tuple[float, int]] = []
    for index, (drafting, guess) in enumerate(bids):
        within = cost.rows_within((cost.seconds(rows) or 0.0) + drafting.affordable_s, rows + len(guess.ids))
        chances = islice(drafting.chances(guess), max(guess.sure, (within or 0) - rows))
        found += ((chance, index) for chance in takewhile(_LEAST_CHANCE.__le__, chances))
    return sorted(found, key=lambda one: -one[0])


def _best(likeliest: Sequence[tuple[float, int]], rows: int, cost: StepCost, plain_s: float) -> int:
    best, most, expected = 0, rows / plain_s, float(rows)
    for count, (chance, _) in enumerate(likeliest, start=1):
        expected += chance
        hopeful_s = cost.hopeful_seconds(rows + count)
        if hopeful_s is None:
            break
        rate = expected / max(plain_s, hopeful_s)
        if rate > most:
            best, most = count, rate
    return best
