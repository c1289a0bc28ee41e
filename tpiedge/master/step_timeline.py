"""What all nodes did in one step, from what each says of itself: a machine without clock, sockets or threads.

What one node says counts for it alone: a step that rank 0 did not take, or that another node does not tell of, is none.
"""

from dataclasses import dataclass

from tpiedge.wire.control import StepSpans


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
