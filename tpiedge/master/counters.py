"""Counters of nodes: rates, the time line of a step, the speed of machines, and the progress of requests. Pure.

Progress is a token, scores or the end of a running request, a node that got further than ever in its step, blocks or
weights, and a change in rank 0's counters, which alone show the chunks of a long prompt."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from tpiedge.master.epoch import Member
from tpiedge.wire.control import Stats, StepSpans

#: A stranger who reaches rank 0's port could change some of them, and so keep a stuck request alive for ever.
_NO_PROGRESS: Final = dict.fromkeys(
    ("peak_rss_bytes", "kv_bytes", "kv_pages", "kv_pages_used", "bytes_received", "dropped", "refused"), 0
)
#: Speeds are compared in windows of WINDOW_S with STEPS steps at least, and believed if AGREEING windows agree.
WINDOW_S: Final = 8.0
STEPS: Final = 16
AGREEING: Final = 3


@dataclass(frozen=True, slots=True)
class Counted:
    """A node's `latest` counters came `spent_s` (0: they are one) after the `first` ones of the last seconds."""

    latest: Stats
    first: Stats
    spent_s: float


class CounterLog:
    """Counters of one node in one epoch, of the last 6 seconds."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, Stats]] = deque()

    def take(self, stats: Stats, now: float) -> None:
        self._heard.append((now, stats))
        while now - self._heard[0][0] > 6.0:
            self._heard.popleft()

    def counted(self, now: float) -> Counted | None:
        if not self._heard:
            return None
        (begun, first), (ended, latest) = self._heard[0], self._heard[-1]
        if now - ended > 6.0:
            return Counted(latest, latest, 0.0)
        return Counted(latest, first, ended - begun)


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """One step that all nodes recorded, `spans` by rank. `at`: seconds since 1970 of the last report."""

    epoch: int
    at: float
    spans: tuple[StepSpans, ...]


class Pace:
    """Finds nodes slower or faster than expected: as all take the same steps, the ratio of measured to expected FFN
    time should be equal. The reference is rank 0, which cannot be replaced; if it has no FFN, nothing is found."""

    def __init__(self, expected: Sequence[float]) -> None:
        """`expected`: by rank, a number proportional to the seconds of a step's FFN; 0: not known."""
        self._expected = expected
        self._began: tuple[float, Mapping[int, Stats]] | None = None
        self.slower = [deque[float](maxlen=AGREEING) for _ in expected]  # by rank, in the last windows

    def look(self, counters: Mapping[int, Stats], now: float) -> None:
        """Ends a window if one is due. `counters`: the latest of each rank."""
        if 0 not in counters:
            return
        if self._began is None:
            self._began = now, counters
        began, first = self._began
        steps = counters[0].steps - first[0].steps
        if now - began < WINDOW_S or steps < STEPS:
            return
        self._began = now, counters
        # More than four tokens in a step are a prompt or many answers: then arithmetic counts, not reading weights.
        if counters[0].tokens - first[0].tokens > 4 * steps:
            return
        paces = {
            rank: (counters[rank].ffn_s - first[rank].ffn_s) / steps / expected
            for rank, expected in enumerate(self._expected)
            if expected > 0 and rank in first and rank in counters
        }
        for rank, pace in paces.items():
            if rank and pace > 0 and paces.get(0, 0.0) > 0:
                self.slower[rank].append(pace / paces[0])


class RequestWatch:
    """Watches all running requests together."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self._progress_at = 0.0  # while a request runs
        self._furthest: dict[int, tuple[tuple[int, int], int]] = {}
        self._measured: Stats | None = None  # since the last progress of another kind

    def begin(self, request: str, now: float) -> None:
        if not self.running:
            self.advance(now)
        self.running.add(request)

    def advance(self, now: float) -> None:
        """Notes progress of a running request."""
        self._progress_at, self._measured = now, None

    def end(self, request: str, now: float) -> None:
        self.running.remove(request)
        self.advance(now)

    def look(self, members: Sequence[Member], now: float) -> None:
        for member in members:
            at, read = self._furthest.get(member.rank, ((-1, -1), -1))
            reached = (max(at, (member.step, member.block)), max(read, member.bytes_read))
            if reached != (at, read):
                self._furthest[member.rank] = reached
                self.advance(now)

    def measured(self, stats: Stats, now: float) -> None:
        found = structs.replace(stats, **_NO_PROGRESS)
        if self._measured not in (None, found):
            self.advance(now)
        self._measured = found

    def quiet_s(self, now: float) -> float:
        return now - self._progress_at if self.running else 0.0
