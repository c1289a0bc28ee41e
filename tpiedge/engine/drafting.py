"""How many of the tokens that were guessed for a sequence its next step takes. Pure: no clock, nothing at random.

A step with drafted tokens takes longer, and brings those that come true beside the one that it brings anyway. What
comes true is learnt for each sequence by how many tokens matched before: every step shows whether the guess was right,
also one that was not drafted. What a step takes, `StepCost` knows.

Laws:
1. Of a sequence's guess the first tokens are drafted, as many as make the expected tokens per second of the whole step
   the most; none, if that is without any.
2. Compared with a run without drafts, a sequence has lost at no time more than `_RISK` of what that run would have
   taken, and `_CREDIT` tokens' worth: no draft is taken that could lose more if nothing of it came true, but those that
   are sure to. What was gained may be lost again up to `_GAINED` tokens' worth. (By `StepCost`; in a shared step each
   has its part.)
3. The decision depends on nothing but what was learnt and measured.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, takewhile
from operator import mul
from typing import Final

from tpiedge.engine.prompt_lookup import Guess
from tpiedge.engine.step_cost import StepCost

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
