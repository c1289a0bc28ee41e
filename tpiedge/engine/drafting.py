"""Drafts from a sequence's own text, and how many of them its next step takes. Pure: no clock, nothing at random.

Answers often repeat what they or their prompts hold: a text with a word changed, code that is edited, a name. What
followed the last time that the latest tokens stood there is a good guess of what comes (prompt lookup decoding). A step
with drafted tokens takes longer, and brings those that come true beside the one that it brings anyway. What comes true
is learnt for each sequence by how many tokens matched before: every step shows whether the guess was right, also one
that was not drafted. What a step takes, `StepCost` knows.

Laws:
1. A guess continues the earlier occurrence of the longest suffix that was found, the latest one of equals. A suffix has
   two tokens at least; beyond `_ENOUGH` tokens longer and shorter are alike. Where a long match has just ended and no
   other is found, the guess goes on beside it: after the place of the same token, if that is near, or as if one token
   had been replaced by another. One that reaches the end of the text goes on with its own tokens: a period is repeated.
2. `append` takes constant time, `draft` at most `_CANDIDATES` comparisons and its result's; twelve bytes are kept per
   token. Guesses that were asked for and not used do no harm.
3. Of a sequence's guess the first tokens are drafted, as many as make the expected tokens per second of the whole step
   the most; none, if that is without any.
4. Compared with a run without drafts, a sequence has lost at no time more than `_RISK` of what that run would have
   taken, and `_CREDIT` tokens' worth: no draft is taken that could lose more if nothing of it came true, but those that
   are sure to. What was gained may be lost again up to `_GAINED` tokens' worth. (By `StepCost`; in a shared step each
   has its part.)

Pairs of tokens are found as in LZ77 compressors: `_heads` has, by a hash of the pair, where it last ended, and
`_earlier` where the one before that did. A pair enters when its successor is known: the suffix itself is not found.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from operator import mul
from typing import Final

from tpiedge.engine.step_cost import StepCost

_HASHES: Final = 1 << 14
#: Earlier occurrences that a search looks at.
_CANDIDATES: Final = 64
_ENOUGH: Final = 32
#: How long a match must have been for tokens beside it to be a guess, and how far beside it.
_TRUSTED: Final = 4
_REACH: Final = 8


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next; none, if nothing in the text suggests any.

    `matched`: how many tokens before them are those before the place they are from, as far as that was counted; 0 or 1:
    only beside a match. `sure`: how many of them cannot but come.
    """

    ids: tuple[int, ...] = ()
    matched: int = 0
    sure: int = 0


NO_GUESS: Final = Guess()


class PromptLookup:
    """The tokens of one sequence, and where pairs of them stand."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._ids = array("I")
        self._heads = array("i", bytes(4 * _HASHES))
        self._earlier = array("i", (0, 0))
        # The place of the token that should come next, and how many before it are as those here. 0: none is known.
        self._place = 0
        self._matched = 0
        # The place of a token that should have come and did not, and how many came since.
        self._lost = 0
        self._strayed = 0
        for token in ids:
            self.append(token)

    def append(self, token: int) -> None:
        """The sequence goes on with this token."""
        ids = self._ids
        end = len(ids)
        if end >= 2:
            hashed = _hash(ids[end - 2], ids[end - 1])
            self._earlier.append(self._heads[hashed])
            self._heads[hashed] = end
        ids.append(token)
        self._follow(token)

    def draft(self, most: int) -> Guess:
        """At most so many tokens that may come next."""
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
        """Where the longest suffix that is found ends, and its length; 0 of less than two tokens."""
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
        """How many tokens before `end` are the latest ones, as far as it matters."""
        ids, beyond = self._ids, len(self._ids)
        most = min(_ENOUGH, end)
        length = 0
        while length < most and ids[end - 1 - length] == ids[beyond - 1 - length]:
            length += 1
        return length

    def _beside(self) -> tuple[int, int]:
        """A place beside the match that ended: after the nearest token that is the latest one, or in step with it."""
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
#: The part of what may be lost that a step may lose: whoever stakes all of it is soon left without any.
_STAKE: Final = 0.75
#: A token that comes true more rarely is not drafted however little it seems to cost.
_LEAST_CHANCE: Final = 0.05
#: How likely the next token is right after 0, 1, 2 to 3, 4 to 7, ... that matched, before anything was learnt.
_EXPECTED: Final = (0.5, 0.5, 0.5, 0.75, 0.9, 0.95, 0.97)
#: That expectation counts as much as so many observations; all fade by a factor with each new one.
_WEIGHT: Final = 3.0
_FADING: Final = 0.97


class _Chance:
    """How often a guess after so many matches was right, as far as it is remembered."""

    __slots__ = ("_right", "_seen")

    def __init__(self, expected: float) -> None:
        self._seen = _WEIGHT
        self._right = _WEIGHT * expected

    @property
    def rate(self) -> float:
        return self._right / self._seen

    def observe(self, right: bool) -> None:
        self._seen = _FADING * self._seen + 1
        self._right = _FADING * self._right + right


class DraftLength:
    """What drafts of one sequence have been worth."""

    def __init__(self) -> None:
        self._chances = tuple(_Chance(expected) for expected in _EXPECTED)
        #: What drafts cost more than they brought, what the answer would have taken without them, and a token of it.
        self._lost_s = 0.0
        self._plain_s = 0.0
        self._token_s = 0.0

    def chances(self, guess: Guess) -> Iterator[float]:
        """How likely it is that the guess is right up to its first, second, ... token."""
        rates = (
            1.0 if i < guess.sure else self._chance(guess.matched + i).rate for i in range(len(guess.ids))
        )
        return accumulate(rates, mul)

    @property
    def affordable_s(self) -> float:
        """How many seconds the next step's drafts may take if none of them comes true."""
        left_s = _RISK * self._plain_s + _CREDIT * self._token_s - self._lost_s
        return max(0.0, _STAKE * left_s)

    def taken(self, seconds: float, token_s: float) -> None:
        """A step is planned in which the sequence's drafts, if any, take so long, and a token that comes true is worth
        `token_s`: the part of the sequence of what the step takes without drafts."""
        self._token_s = token_s
        self._plain_s += token_s
        self._lost_s += seconds

    def learn(self, guess: Guess, tokens: Sequence[int]) -> None:
        """The step that was planned with the guess has brought these tokens, one at least."""
        for i, (guessed, token) in enumerate(zip(guess.ids, tokens, strict=False)):
            if i >= guess.sure:
                self._chance(guess.matched + i).observe(guessed == token)
            if guessed != token:
                break
        gained_s = (len(tokens) - 1) * self._token_s
        self._plain_s += gained_s
        self._lost_s = max(self._lost_s - gained_s, -_GAINED * self._token_s)

    def _chance(self, matched: int) -> _Chance:
        return self._chances[min(matched.bit_length(), len(_EXPECTED) - 1)]


def allot(bids: Sequence[tuple[DraftLength, Guess]], rows: int, cost: StepCost, most: int) -> list[int]:
    """How many tokens of each guess the next step takes. Notes it, too, so it is called once per step.

    `bids`: of every sequence that decodes and may draft, also where its guess is empty. `rows`: of the step without
    drafts, one for each sequence that decodes. `most`: of drafted tokens together.
    """
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
    """(Chance, index of its bid) of every token that may be drafted, the likeliest first, those of a bid in order."""
    found: list[tuple[float, int]] = []
    for index, (drafting, guess) in enumerate(bids):
        within = cost.rows_within((cost.seconds(rows) or 0.0) + drafting.affordable_s, rows + len(guess.ids))
        chances = islice(drafting.chances(guess), max(guess.sure, (within or 0) - rows))
        found += ((chance, index) for chance in takewhile(_LEAST_CHANCE.__le__, chances))
    return sorted(found, key=lambda one: -one[0])


def _best(likeliest: Sequence[tuple[float, int]], rows: int, cost: StepCost, plain_s: float) -> int:
    """How many of the likeliest tokens make the expected tokens per second the most."""
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
