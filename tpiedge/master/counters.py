"""Counters of nodes: rates, a step's time line, speeds of machines, progress of requests. Pure.

Progress is one of three events. A running request gets a token, scores, an embedding or its end. A node reaches a new
maximum of steps, blocks or bytes read. Rank 0's other counters change, for example by chunks of a long prompt."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from tpiedge.master.epoch import Member
from tpiedge.wire.control import Stats, StepSpans

#: Counters that show no progress: an unknown peer at rank 0's port could change these, and keep a stuck request alive.
_NO_PROGRESS: Final = dict.fromkeys(
    ("peak_rss_bytes", "kv_bytes", "kv_pages", "kv_pages_used", "bytes_received", "dropped", "refused"), 0
)
#: Speeds are compared in windows of at least WINDOW_S and STEPS steps, and used if WINDOWS windows in a row agree.
WINDOW_S: Final = 8.0
STEPS: Final = 16
WINDOWS: Final = 3


@dataclass(frozen=True, slots=True)
class Counted:
    """A node's `first` and `latest` counters. `spent_s`: seconds between them; 0 if there is only one report."""

    latest: Stats
    first: Stats
    spent_s: float


class CounterLog:
    """Counters of one node in one epoch, of the last 6 seconds."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, Stats]] = deque()

    def add(self, stats: Stats, now: float) -> None:
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
    """One step that all nodes recorded, by rank. `at`: seconds since 1970."""

    epoch: int
    at: float
    spans: tuple[StepSpans, ...]


class Speeds:
    """Slowdowns of nodes, compared with rank 0: ratios of measured to expected FFN time. Rank 0 must have part of an
    FFN."""

    def __init__(self, expected: Sequence[float]) -> None:
        """`expected`: numbers proportional to the seconds that each rank's FFN should take; 0 means unknown."""
        self._expected = expected
        self._began: tuple[float, Mapping[int, Stats]] | None = None
        self.slowdowns = [deque[float](maxlen=WINDOWS) for _ in expected]  # by rank, in the last windows

    def update(self, counters: Mapping[int, Stats], now: float) -> None:
        """Measures `slowdowns` once per window. `counters`: each rank's latest."""
        if 0 not in counters:
            return
        if self._began is None:
            self._began = now, counters
        began, first = self._began
        steps = counters[0].steps - first[0].steps
        if now - began < WINDOW_S or steps < STEPS:
            return
        self._began = now, counters
        # Above four tokens a step has a prompt or many answers: arithmetic then takes longer than reading weights.
        if counters[0].tokens - first[0].tokens > 4 * steps:
            return
        ratios = {
            rank: (counters[rank].ffn_s - first[rank].ffn_s) / steps / expected
            for rank, expected in enumerate(self._expected)
            if expected > 0 and rank in first and rank in counters
        }
        for rank, ratio in ratios.items():
            if rank and ratio > 0 and ratios.get(0, 0.0) > 0:
                self.slowdowns[rank].append(ratio / ratios[0])


class RequestWatch:
    """Watches the progress of all running requests together."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self._progress_at = 0.0  # valid while a request runs
        self._furthest: dict[int, tuple[tuple[int, int], int]] = {}
        self._measured: Stats | None = None  # rank 0's, since the last progress of another kind

    def add(self, request: str, now: float) -> None:
        if not self.running:
            self.advance(now)
        self.running.add(request)

    def advance(self, now: float) -> None:
        self._progress_at, self._measured = now, None

    def remove(self, request: str, now: float) -> None:
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
