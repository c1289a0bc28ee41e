"""Computes latencies, gaps between tokens and rates from a server's answers. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from tpiedge.lab.bench.figures import spread

_Repeat = TypeVar("_Repeat")
Distribution = dict[str, float]
"""Seconds by the names of PERCENTILES and "max"."""

PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """A request as its client saw it. `token_s`: arrivals of tokens. `cached_tokens`: prompt tokens that the server did
    not compute."""

    sent_s: float
    token_s: tuple[float, ...]
    ended_s: float
    prompt_tokens: int
    error: str = ""
    cached_tokens: int = 0

    @property
    def first_s(self) -> float | None:
        return self.token_s[0] - self.sent_s if self.token_s else None

    @property
    def gaps_s(self) -> tuple[float, ...]:
        return tuple(later - earlier for earlier, later in pairwise(self.token_s))


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """Figures of one load in one repeat. Failed answers add no latencies or tokens. `answering_tokens_per_s`: the rate
    while all clients received tokens."""

    requests: int
    errors: int
    error: str
    seconds: float
    first_s: Distribution | None
    gap_s: Distribution | None
    tokens_per_s: float
    answering_tokens_per_s: float | None
    requests_per_s: float

    @staticmethod
    def of(answers: Sequence[TimedAnswer], clients: int | None) -> "RoundFigures":
        """Sums up `answers` (at least one). `clients` None means that the number of clients varies."""
        whole = [answer for answer in answers if not answer.error]
        failed = [answer.error for answer in answers if answer.error]
        seconds = max(answer.ended_s for answer in answers) - min(answer.sent_s for answer in answers)
        firsts = [answer.first_s for answer in whole if answer.first_s is not None]
        return RoundFigures(
            requests=len(answers),
            errors=len(failed),
            error=failed[0] if failed else "",
            seconds=seconds,
            first_s=distribution(firsts),
            gap_s=distribution([gap for answer in whole for gap in answer.gaps_s]),
            tokens_per_s=sum(len(answer.token_s) for answer in whole) / seconds if seconds else 0.0,
            answering_tokens_per_s=None if clients is None else rate_while_all_answer(whole, clients),
            requests_per_s=len(whole) / seconds if seconds else 0.0,
        )


@dataclass(frozen=True, slots=True)
class LongPromptFigures:
    """Figures of answers beside a long prompt. `normal_s`: seconds between tokens before the long prompt was sent.
    `beside_s`: seconds between tokens while the server read the long prompt. The rates count the long prompt's
    tokens."""

    normal_s: Distribution
    beside_s: Distribution
    alone_tokens_per_s: float
    beside_tokens_per_s: float

    @property
    def gap_ratio(self) -> float:
        return self.beside_s["p99"] / self.normal_s["p99"]

    @property
    def prompt_ratio(self) -> float:
        return self.beside_tokens_per_s / self.alone_tokens_per_s


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns a percentile by the nearest-rank method. `values` must not be empty."""
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(0, rank - 1)]


def distribution(values: Sequence[float]) -> Distribution | None:
    if not values:
        return None
    ordered = sorted(values)
    return {name: percentile(ordered, percent) for name, percent in PERCENTILES.items()} | {
        "max": ordered[-1]
    }


def gaps_within(answers: Sequence[TimedAnswer], start_s: float, end_s: float) -> list[float]:
    """Returns the gaps between tokens that overlap [start_s, end_s]."""
    return [
        later - earlier
        for answer in answers
        for earlier, later in pairwise(answer.token_s)
        if later > start_s and earlier < end_s
    ]


def rate_while_all_answer(answers: Sequence[TimedAnswer], clients: int) -> float | None:
    """Returns tokens per second while exactly `clients` answers received tokens."""
    spans = _times_of(
        clients, [(answer.token_s[0], answer.token_s[-1]) for answer in answers if answer.token_s]
    )
    seconds = sum(end - start for start, end in spans)
    if seconds <= 0:
        return None
    # An answer's first token is computed with its prompt; the token that begins a span, before the span.
    arrivals = [token_s for answer in answers for token_s in answer.token_s[1:]]
    return sum(any(start < token_s <= end for start, end in spans) for token_s in arrivals) / seconds


def _times_of(count: int, intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the times at which exactly `count` intervals overlap."""
    changes = sorted([(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals])
    overlapping, found = 0, []
    for (time_s, change), (next_s, _) in pairwise(changes):
        overlapping += change
        if overlapping == count and next_s > time_s:
            found.append((time_s, next_s))
    return found


def spreads(found: Sequence[Distribution | None]) -> dict[str, dict[str, float]] | None:
    """Returns the spread of each percentile over the distributions in `found`."""
    known = [one for one in found if one is not None]
    return {name: spread([one[name] for one in known]) for name in (*PERCENTILES, "max")} if known else None


def spread_of(
    repeats: Sequence[_Repeat], figure: Callable[[_Repeat], float | None]
) -> dict[str, float] | None:
    """Returns the spread of `figure` over the repeats that have this figure."""
    known = [value for value in map(figure, repeats) if value is not None]
    return spread(known) if known else None
