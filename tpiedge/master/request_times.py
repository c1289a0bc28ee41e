"""Latencies (with pauses), lengths and reading rates of requests. Pure. Times under an earlier master do not count.
Only finished requests have a latency, lengths and a decode time."""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeAlias, get_args

PauseCause: TypeAlias = Literal["plan", "loss", "restart", "priority"]
"""Why an answer paused: a plan or a stopped worker, a loss, a restarted master, or requests with a reader."""
PAUSE_CAUSES: Final[tuple[PauseCause, ...]] = get_args(PauseCause)
SECONDS: Final = (
    *(round(digit * 10.0**exponent, 9) for exponent in range(-3, 3) for digit in (1, 2, 3, 5)),
    *(1000.0, 1800.0, 3600.0),
)
LENGTHS: Final = tuple(float(digit * 10**exponent) for exponent in range(6) for digit in (1, 2, 5))


@dataclass(slots=True)
class Histogram:
    """`counts[i]` values were above `bounds[i - 1]`, and at most `bounds[i]`. The last count has the values above all
    bounds."""

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
    """Requests and tokens since the master started. `cut`: requests that reached max_tokens. `refused` requests are in
    no other count. `resumed`: ended pauses. `paused_s`: their seconds. `travelled`, `brought`: pauses after which KV
    pages were not computed again, but were sent by other machines or were on disk."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    brought_tokens: int = 0  # of `cached_tokens`, from disk
    tokens: int = 0
    resumed: int = 0
    travelled: int = 0
    brought: int = 0
    paused_s: float = 0.0
    cut: int = 0


@dataclass(eq=False, slots=True)
class Timeline:
    """Times of acceptance, first start, first and latest token, under this master."""

    accepted: float | None = None
    started: float | None = None
    first: float | None = None
    last: float | None = None


@dataclass(slots=True)
class RequestHistograms:
    """Histograms since the master started, in seconds or tokens. Not thread-safe. `queue`: from acceptance to start.
    `first_token`: from acceptance to first token. `prefill`: from start to first token. `decode`: from first to last
    token. `latency`: from acceptance to the end. `per_token`: an answer's mean gap between tokens. `pauses`: lengths of
    pauses, by cause."""

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

    def finished(self, line: Timeline, now: float, prompt_tokens: int, answer_tokens: int) -> None:
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
    """Rate at which prompts are read, between `start` and `stop`."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._tokens = 0
        self._rates: deque[float] = deque(maxlen=16)  # enough to contain prompts without cached tokens

    @property
    def token_s(self) -> float:
        """Seconds per token at the slowest recent rate; 0 if unknown."""
        return max(self._rates, default=0.0)

    def start(self, now: float) -> None:
        if self._since is None:
            self._since, self._tokens = now, 0

    def read(self, tokens: int) -> None:
        self._tokens += tokens

    def stop(self, now: float) -> None:
        """Ends the measurement. Ignores a measurement of fewer than 64 tokens, which is mostly waiting."""
        if self._since is not None and self._tokens >= 64:
            self._rates.append((now - self._since) / self._tokens)
        self._since = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Progress with a prompt: `done_tokens` of `of_tokens`. `left_s`: seconds for the rest."""

    done_tokens: int
    of_tokens: int
    tokens_per_s: float
    left_s: float | None


class ReadingProgress:
    """Progress of one prompt in one epoch. The rate counts tokens after the first report."""

    def __init__(self) -> None:
        self._done = self._before = 0
        self._begun: float | None = None
        self._last = 0.0

    def update(self, done_tokens: int, now: float) -> bool:
        """Returns whether more tokens are computed; False for the first report."""
        if self._begun is None:
            self._begun, self._last = now, now
            self._before = self._done = done_tokens
            return False
        if done_tokens <= self._done:
            return False
        self._done, self._last = done_tokens, now
        return True

    def reading(self, of_tokens: int) -> Reading | None:
        if self._begun is None:
            return None
        done, spent_s = min(self._done, of_tokens), self._last - self._begun
        rate = (self._done - self._before) / spent_s if spent_s > 0 else 0.0
        return Reading(done, of_tokens, rate, (of_tokens - done) / rate if rate > 0 else None)
