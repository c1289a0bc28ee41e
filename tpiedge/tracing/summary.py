"""What a trace says in a few figures: how long each lane of a node was busy, and how much reading was hidden."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpiedge.tracing.chrome import Trace
from tpiedge.tracing.intervals import Interval, clip, overlap, total, union
from tpiedge.tracing.tracer import LANES, TraceEvent


@dataclass(frozen=True)
class NodeSummary:
    """What one node did, in seconds. `busy_s` by lane; several reads at once count once.

    `load_during_s`: how long it read while that lane was busy; `travel_during_compute_s`: how long it computed while
    an all-reduce was under way. `read_bytes` of reads that ended in the time.
    """

    rank: int
    busy_s: dict[str, float]
    load_during_s: dict[str, float]
    travel_during_compute_s: float
    read_bytes: int
    events: int
    dropped: int

    @property
    def hidden_percent(self) -> float | None:
        """Percent of the reading during which the engine did not wait for weights; None where nothing was read."""
        load_s = self.busy_s["load"]
        return 100 * (1 - self.load_during_s["wait"] / load_s) if load_s else None

    @property
    def travel_hidden_percent(self) -> float | None:
        """Percent of the travelling of all-reduces during which the node computed; None where it waited for each."""
        travel_s = self.busy_s["travel"]
        return 100 * self.travel_during_compute_s / travel_s if travel_s else None


def summarize(trace: Trace, start_s: float, end_s: float) -> list[NodeSummary]:
    """A summary of every node between two times, in the order of ranks."""
    return [
        _summary(rank, events, trace.dropped.get(rank, 0), (start_s, end_s))
        for rank, events in trace.nodes.items()
    ]


def _summary(rank: int, events: Sequence[TraceEvent], dropped: int, within: Interval) -> NodeSummary:
    start_s, end_s = within
    inside = [event for event in events if event.start_s < end_s and event.end_s > start_s]
    busy = {
        lane: union(clip((event.span for event in inside if event.lane == lane), start_s, end_s))
        for lane in LANES
    }
    load = busy["load"]
    return NodeSummary(
        rank,
        {lane: total(stretches) for lane, stretches in busy.items()},
        {
            lane: total(overlap(load, stretches))
            for lane, stretches in busy.items()
            if lane not in ("load", "travel")
        },
        total(overlap(busy["travel"], busy["compute"])),
        sum(event.nbytes for event in inside if event.end_s <= end_s),
        len(inside),
        dropped,
    )
