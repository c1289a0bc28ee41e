"""What nodes say of themselves: what each one counts, and what all did in one step. Without clock, sockets or threads.

Rates are those between two arrivals, whenever somebody looks at them: a node's word may be old when it is read.
What one node says counts for it alone: a step that rank 0 did not take, or that another node does not tell of, is none.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from tpiedge.wire.control import Stats, StepSpans

#: Rates are of so many seconds at most.
_WINDOW_S: Final = 6.0


@dataclass(frozen=True, slots=True)
class Counted:
    """The `latest` counters of a node, which came `spent_s` after the `first` ones of the last seconds; 0, and the
    same ones, where there are no others."""

    latest: Stats
    first: Stats
    spent_s: float


class CounterLog:
    """Of one node in one epoch. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, Stats]] = deque()

    def take(self, stats: Stats, now: float) -> None:
        """They came now."""
        self._heard.append((now, stats))
        while now - self._heard[0][0] > _WINDOW_S:
            self._heard.popleft()

    def counted(self, now: float) -> Counted | None:
        """None before the first ones. Those that came long before `now` say nothing of how fast things go."""
        if not self._heard:
            return None
        (begun, first), (ended, latest) = self._heard[0], self._heard[-1]
        if now - ended > _WINDOW_S:
            return Counted(latest, latest, 0.0)
        return Counted(latest, first, ended - begun)


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """One step that all nodes recorded, of an epoch. `at`: when the last of them said so, in seconds since 1970;
    `spans` in the order of ranks."""

    epoch: int
    at: float
    spans: tuple[StepSpans, ...]


class Timelines:
    """Of one epoch with so many nodes."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._latest: dict[int, StepSpans] = {}
        #: The latest whole one.
        self.latest: StepTimeline | None = None

    def take(self, spans: StepSpans, wall: float) -> None:
        """A node says what it did. `wall`: the time in seconds since 1970."""
        self._latest[spans.rank] = spans
        steps = {one.step for one in self._latest.values()}
        if len(self._latest) == self._nodes and len(steps) == 1:
            found = tuple(self._latest[rank] for rank in range(self._nodes))
            self.latest = StepTimeline(spans.epoch, wall, found)
