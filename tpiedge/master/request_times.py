"""How long requests take and how fast their answers come: without clock or threads; times are seconds on the caller's
clock.

Times are those that readers see: they begin when a request is accepted, and pauses are parts of them. Of a request that
an earlier master had accepted nothing is counted that began there. One that failed or was cancelled has no latency.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeAlias, get_args

PauseCause: TypeAlias = Literal["plan", "loss", "restart", "priority"]
"""Why an answer paused: a plan that was wanted (or a worker that was stopped), a loss, another master, or requests that
somebody waits for."""

PAUSE_CAUSES: Final[tuple[PauseCause, ...]] = get_args(PauseCause)
SECONDS: Final = (
    *(round(digit * 10.0**exponent, 9) for exponent in range(-3, 3) for digit in (1, 2, 3, 5)),
    1000.0,
    1800.0,
    3600.0,
)
"""Bounds of times: from a millisecond to an hour."""

LENGTHS: Final = tuple(float(digit * 10**exponent) for exponent in range(6) for digit in (1, 2, 5))
"""Bounds of numbers of tokens."""


@dataclass(slots=True)
class Histogram:
    """How many values were at most `bounds[i]` and above the bound before; the last of `counts` is of those above all.
    `total`: the sum of the values. It takes the same memory whatever is observed."""

    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class Totals:
    """Requests by how they ended, and tokens, since the master started. Refused ones were never accepted. `cut` of the
    `finished` ones ended because the answer had as many tokens as it may. `cached_tokens` of the `prompt_tokens` had
    been kept from earlier requests. `resumed`: how often an answer went on in another epoch; `paused_s`: for how long
    they had paused, added up."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    resumed: int = 0
    paused_s: float = 0.0
    cut: int = 0


@dataclass(eq=False, slots=True)
class Timeline:
    """When a request was accepted, first started, and had its first and its latest token; None: not yet, or of an
    earlier master."""

    accepted: float | None = None
    started: float | None = None
    first: float | None = None
    last: float | None = None


@dataclass(slots=True)
class RequestHistograms:
    """Seconds and tokens, since the master started. `queue`: from acceptance to the start; `first_token`: to the first
    token; `prefill`: from the start to it; `between_tokens`: from each token to the next; `decode`: from the first to
    the last one; `per_token`: the mean between two of a whole answer; `latency`: from acceptance to the end; `pauses`
    by cause, those that have ended. Not thread-safe."""

    queue: Histogram = field(default_factory=Histogram)
    first_token: Histogram = field(default_factory=Histogram)
    prefill: Histogram = field(default_factory=Histogram)
    between_tokens: Histogram = field(default_factory=Histogram)
    decode: Histogram = field(default_factory=Histogram)
    per_token: Histogram = field(default_factory=Histogram)
    latency: Histogram = field(default_factory=Histogram)
    prompt_tokens: Histogram = field(default_factory=partial(Histogram, LENGTHS))
    answer_tokens: Histogram = field(default_factory=partial(Histogram, LENGTHS))
    pauses: Mapping[PauseCause, Histogram] = field(
        default_factory=lambda: {cause: Histogram() for cause in PAUSE_CAUSES}
    )

    def started(self, line: Timeline, now: float) -> None:
        """Rank 0 is asked, for the first time or again."""
        if line.accepted is not None and line.started is None:
            line.started = now
            self.queue.observe(now - line.accepted)

    def token(self, line: Timeline, now: float) -> None:
        if line.last is not None:
            self.between_tokens.observe(now - line.last)
        elif line.accepted is not None and line.started is not None:
            line.first = now
            self.first_token.observe(now - line.accepted)
            self.prefill.observe(now - line.started)
        line.last = now

    def resumed(self, cause: PauseCause, paused_s: float) -> None:
        self.pauses[cause].observe(paused_s)

    def finished(self, line: Timeline, now: float, prompt_tokens: int, answer_tokens: int) -> None:
        """The answer is whole."""
        if line.accepted is None:
            return
        self.latency.observe(now - line.accepted)
        self.prompt_tokens.observe(prompt_tokens)
        self.answer_tokens.observe(answer_tokens)
        if line.first is not None and line.last is not None:
            self.decode.observe(line.last - line.first)
            if answer_tokens > 1:
                self.per_token.observe((line.last - line.first) / (answer_tokens - 1))


class ReadingRate:
    """How long the cluster takes to read prompts: the times between `begin` and `rest` are spent with one or more."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._tokens = 0
        # Enough that prompts are among them of which nothing was cached.
        self._rates: deque[float] = deque(maxlen=16)

    @property
    def token_s(self) -> float:
        """Seconds per token, at the slowest rate of late; 0 where none is known."""
        return max(self._rates, default=0.0)

    def begin(self, now: float) -> None:
        """A prompt is read from now on, perhaps beside others."""
        if self._since is None:
            self._since, self._tokens = now, 0

    def read(self, tokens: int) -> None:
        self._tokens += tokens

    def rest(self, now: float) -> None:
        """None is read any more. Of fewer than 64 tokens the time says more about waiting than about reading."""
        if self._since is not None and self._tokens >= 64:
            self._rates.append((now - self._since) / self._tokens)
        self._since = None


@dataclass(frozen=True, slots=True)
class Reading:
    """`done_tokens` of the `of_tokens` are computed that have to be before the next token of the answer; the rest takes
    `left_s` at the rate of late, None where that is not known yet (`tokens_per_s` 0)."""

    done_tokens: int
    of_tokens: int
    tokens_per_s: float
    left_s: float | None


class ReadingProgress:
    """How far the prompt of one request is read in one epoch. What is there at the first report may have been cached:
    it says nothing of the rate."""

    def __init__(self) -> None:
        self._done = self._before = 0
        self._begun: float | None = None
        self._last = 0.0

    def take(self, done_tokens: int, now: float) -> bool:
        """So many are computed; returns whether they are more than at the report before, if there was one."""
        if self._begun is None:
            self._begun, self._last = now, now
            self._before = self._done = done_tokens
            return False
        if done_tokens <= self._done:
            return False
        self._done, self._last = done_tokens, now
        return True

    def reading(self, of_tokens: int) -> Reading | None:
        """None before the first report."""
        if self._begun is None:
            return None
        done, spent_s = min(self._done, of_tokens), self._last - self._begun
        rate = (self._done - self._before) / spent_s if spent_s > 0 else 0.0
        return Reading(done, of_tokens, rate, (of_tokens - done) / rate if rate > 0 else None)
