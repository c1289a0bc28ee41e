"""How long requests wait and how fast their answers come, all requests together: a machine without clock or threads.

Laws:
1. Times are those that readers see: they begin when the request is accepted, and pauses are parts of them.
2. Of a request that an earlier master had accepted nothing is counted that began there, nor its length.
3. A whole answer counts when rank 0 or the queue says that it is; one that failed or was cancelled has no latency.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal, TypeAlias, get_args

from tpiedge.master.histogram import LENGTHS, SECONDS, GrowingHistogram, Histogram

PauseCause: TypeAlias = Literal["plan", "loss", "restart", "priority"]
"""Why an answer paused: a plan that was wanted (or a worker that was stopped), a loss, another master, or requests that
somebody waits for."""

PAUSE_CAUSES: Final[tuple[PauseCause, ...]] = get_args(PauseCause)

_TIMES: Final = Histogram.empty(SECONDS)
_TOKENS: Final = Histogram.empty(LENGTHS)


@dataclass(frozen=True, slots=True)
class RequestHistograms:
    """Seconds and tokens, since the master started. `queue`: from acceptance to the start; `first_token`: to the first
    token; `prefill`: from the start to it; `between_tokens`: from each token to the next; `decode`: from the first to
    the last one; `per_token`: the mean between two of a whole answer; `latency`: from acceptance to the end; `pauses`
    by cause, those that have ended."""

    queue: Histogram = _TIMES
    first_token: Histogram = _TIMES
    prefill: Histogram = _TIMES
    between_tokens: Histogram = _TIMES
    decode: Histogram = _TIMES
    per_token: Histogram = _TIMES
    latency: Histogram = _TIMES
    prompt_tokens: Histogram = _TOKENS
    answer_tokens: Histogram = _TOKENS
    pauses: Mapping[PauseCause, Histogram] = field(
        default_factory=lambda: dict.fromkeys(PAUSE_CAUSES, _TIMES)
    )


@dataclass(eq=False, slots=True)
class Timeline:
    """When a request was accepted, first started, and had its first and its latest token; None: not yet, or of an
    earlier master."""

    accepted: float | None = None
    started: float | None = None
    first: float | None = None
    last: float | None = None


class RequestTimes:
    """Observes requests. Times are seconds on the caller's clock; not thread-safe."""

    def __init__(self) -> None:
        self._pauses = {cause: GrowingHistogram(SECONDS) for cause in PAUSE_CAUSES}
        self._others = {
            one.name: GrowingHistogram(one.default.bounds)
            for one in fields(RequestHistograms)
            if isinstance(one.default, Histogram)
        }

    def started(self, line: Timeline, now: float) -> None:
        """Rank 0 is asked, for the first time or again."""
        if line.accepted is not None and line.started is None:
            line.started = now
            self._others["queue"].observe(now - line.accepted)

    def token(self, line: Timeline, now: float) -> None:
        """A token is passed on."""
        if line.last is not None:
            self._others["between_tokens"].observe(now - line.last)
        elif line.accepted is not None and line.started is not None:
            line.first = now
            self._others["first_token"].observe(now - line.accepted)
            self._others["prefill"].observe(now - line.started)
        line.last = now

    def resumed(self, cause: PauseCause, paused_s: float) -> None:
        """A pause ends."""
        self._pauses[cause].observe(paused_s)

    def finished(self, line: Timeline, now: float, prompt_tokens: int, answer_tokens: int) -> None:
        """The answer is whole."""
        if line.accepted is None:
            return
        self._others["latency"].observe(now - line.accepted)
        self._others["prompt_tokens"].observe(prompt_tokens)
        self._others["answer_tokens"].observe(answer_tokens)
        if line.first is not None and line.last is not None:
            self._others["decode"].observe(line.last - line.first)
            if answer_tokens > 1:
                self._others["per_token"].observe((line.last - line.first) / (answer_tokens - 1))

    def histograms(self) -> RequestHistograms:
        """What was observed so far."""
        found = {name: one.histogram() for name, one in self._others.items()}
        pauses = {cause: one.histogram() for cause, one in self._pauses.items()}
        return RequestHistograms(**found, pauses=pauses)
