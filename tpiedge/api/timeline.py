"""What all machines did in one step, over one axis of seconds. Pure.

Machines' clocks are not compared. An all-reduce ends on all of them at the same moment, but for the way of a message,
so each machine's spans are moved until these ends are rank 0's. The axis is rank 0's: it begins the step and ends it.

A machine waits in an all-reduce until the last machine has begun it; what is left of it is the network's. A machine
also waits for rank 0 before its first span and after its last one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, TypeAlias

from tpiedge.master.counters import StepTimeline
from tpiedge.master.status import NodeStatus
from tpiedge.wire.control import StepSpans

_Spans: TypeAlias = list[tuple[float, float]]

PARTS: Final = ("compute", "wait", "network", "disk")
_MICROSECOND: Final = 1e-6
_WINDOW_S: Final = 6.0


@dataclass(frozen=True, slots=True)
class ShownStep:
    """One step of `epoch`, told `at` (seconds since 1970). `json`: as `GET /admin/cluster` has it; `parts_s`: of each
    rank, the seconds of PARTS."""

    epoch: int
    at: float
    json: Mapping[str, object]
    parts_s: Sequence[tuple[float, ...]]


class StepMeans:
    """What became of the time of a step in the steps of one epoch that were shown, those of the _WINDOW_S about the
    latest one. For one thread."""

    def __init__(self) -> None:
        self._epoch = 0
        #: By the time at which it was told, `parts_s` of each step.
        self._steps: dict[float, Sequence[tuple[float, ...]]] = {}

    def after(self, step: ShownStep | None) -> Mapping[int, Mapping[str, float]]:
        """By rank and part, with `step`, which is shown now, perhaps again. Without one there are none."""
        if step is None:
            return {}
        if step.epoch != self._epoch:
            self._epoch, self._steps = step.epoch, {}
        self._steps[step.at] = step.parts_s
        self._steps = {at: parts for at, parts in self._steps.items() if abs(step.at - at) <= _WINDOW_S}
        of_ranks = enumerate(zip(*self._steps.values(), strict=True))
        return {
            rank: {
                f"{part}_s": round(fmean(same), 7)
                for part, same in zip(PARTS, zip(*steps, strict=True), strict=True)
            }
            for rank, steps in of_ranks
        }


def shown_step(timeline: StepTimeline | None, nodes: Sequence[NodeStatus], epoch: int) -> ShownStep | None:
    """The step on its axis, with the `nodes` of that epoch; None where it is of another one. Takes milliseconds where
    the model has many layers."""
    if timeline is None or timeline.epoch != epoch:
        return None
    first = timeline.spans[0]
    edges = [
        edge for part in (first.compute, first.reduce, first.disk) for span in part for edge in span
    ] or [0]
    begun, ended = min(edges) * _MICROSECOND, max(edges) * _MICROSECOND
    moved = [_moved(one, _shift(first, one), begun, ended) for one in timeline.spans]
    latest = _latest_begins([one["reduce"] for one in moved])
    parts = [_parts(one, latest, begun, ended, leads=rank == 0) for rank, one in enumerate(moved)]
    json = {
        "step": timeline.spans[0].step,
        "at": round(timeline.at, 3),
        "tokens": timeline.spans[0].tokens,
        "took_s": round(ended - begun, 6),
        "machines": [
            {
                "name": node.name,
                "host": node.host,
                "rank": node.rank,
                **{f"{part}_s": round(_length(spans), 6) for part, spans in parts[node.rank].items()},
                "spans": {
                    part: [[round(start - begun, 6), round(end - begun, 6)] for start, end in spans]
                    for part, spans in parts[node.rank].items()
                },
            }
            for node in sorted(nodes, key=lambda node: -1 if node.rank is None else node.rank)
            if node.rank is not None and node.rank < len(parts)
        ],
    }
    parts_s = [tuple(_length(one[part]) for part in PARTS) for one in parts]
    return ShownStep(timeline.epoch, timeline.at, json, parts_s)


def _shift(first: StepSpans, own: StepSpans) -> float:
    """By how many microseconds a machine's spans are to be moved."""
    pairs = zip(reversed(first.reduce), reversed(own.reduce), strict=False)
    return median([there[1] - here[1] for there, here in pairs] or [0])


def _moved(own: StepSpans, shift: float, begun: float, ended: float) -> Mapping[str, _Spans]:
    """In seconds, within the axis. What a node says need not be so: a span that ends before it begins has no length."""

    def at(micros: int) -> float:
        return min(max((micros + shift) * _MICROSECOND, begun), ended)

    return {
        kind: [(at(start), max(at(start), at(end))) for start, end in spans]
        for kind, spans in (("compute", own.compute), ("reduce", own.reduce), ("disk", own.disk))
    }


def _latest_begins(reduces: Sequence[_Spans]) -> list[float]:
    """When the last machine began each all-reduce, the last one first: rank 0's first one, its announcement of the
    step, has none beside it."""
    return [max(start for start, _ in same) for same in zip(*map(reversed, reduces), strict=False)]


def _parts(
    own: Mapping[str, _Spans], latest: Sequence[float], begun: float, ended: float, *, leads: bool
) -> dict[str, _Spans]:
    wait: _Spans = []
    network: _Spans = []
    for number, (start, end) in enumerate(reversed(own["reduce"])):
        last = min(max(start, latest[number]), end) if number < len(latest) else start
        wait.append((start, last))
        network.append((last, end))
    if not leads:
        edges = [edge for part in own.values() for span in part for edge in span]
        wait += [(begun, min(edges, default=ended)), (max(edges, default=ended), ended)]
    return {
        "compute": _without(_joined(own["compute"]), _joined(own["disk"])),
        "wait": _joined(wait),
        "network": _joined(network),
        "disk": _joined(own["disk"]),
    }


def _joined(spans: Iterable[tuple[float, float]]) -> _Spans:
    """Those that have a length, in their order; of those that touch, one."""
    found: _Spans = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _without(spans: _Spans, holes: _Spans) -> _Spans:
    """What of the spans is outside the holes, both as `_joined` makes them."""
    left: _Spans = []
    passed = 0
    for start, end in spans:
        while passed < len(holes) and holes[passed][1] <= start:
            passed += 1
        at, hole = start, passed
        while hole < len(holes) and holes[hole][0] < end:
            left.append((at, holes[hole][0]))
            at = holes[hole][1]
            hole += 1
        left.append((at, end))
    return _joined(left)


def _length(spans: _Spans) -> float:
    return sum(end - start for start, end in spans)
