"""Reads a trace of `tpiedge run --trace` and sums up steps.

A step counts as a decode step if the LM head drew a token in the previous step. Other steps count as prompt steps. So
the first step of a later request counts as a decode step.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from tpiedge.errors import OutOfMemory, UserError
from tpiedge.tracing.collection import DROPPED
from tpiedge.tracing.tracer import LANES, Interval, TraceEvent, clip, union, within

_TYPICAL = 3
_RANGE = re.compile(r"(?P<only>\d{1,9})|(?P<first>\d{1,9})?:(?P<last>\d{1,9})?", re.ASCII)


@dataclass(frozen=True)
class Trace:
    """Events by rank, sorted by start. `dropped`: the number of lost events by rank."""

    nodes: Mapping[int, tuple[TraceEvent, ...]]
    dropped: Mapping[int, int]

    @property
    def end_s(self) -> float:
        return max(event.end_s for events in self.nodes.values() for event in events)

    @cached_property
    def steps(self) -> Mapping[int, tuple[float, float]]:
        """The (first start, last end) of each step over all nodes, in seconds. Steps that took no time are left out."""
        found: dict[int, tuple[float, float]] = {}
        for event in (event for events in self.nodes.values() for event in events if event.step > 0):
            start, end = found.get(event.step, (math.inf, 0.0))
            found[event.step] = (min(start, event.start_s), max(end, event.end_s))
        return {step: (start, end) for step, (start, end) in found.items() if end > start}


def read_trace(path: Path, memory_bytes: int | None = None) -> Trace:
    """Reads a trace. Raises UserError for a damaged file, OutOfMemory if reading needs more than `memory_bytes`."""
    values = _object(path, memory_bytes)
    records, other = values.get("traceEvents"), values.get("otherData")
    if not isinstance(records, list):
        raise _no_trace(path, "it has no list of events")
    if not isinstance(other, dict) or DROPPED not in other:
        raise _no_trace(path, "another program wrote it")
    try:
        found = [_event(record) for record in records if record["ph"] == "X"]
        dropped = {int(rank): int(number) for rank, number in other[DROPPED].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _no_trace(path, f"an event in it is damaged: {type(error).__name__}: {error}") from None
    if not found:
        raise _no_trace(path, "nothing happened in it")
    nodes: dict[int, list[TraceEvent]] = {}
    for rank, event in sorted(found, key=lambda item: (item[0], item[1].start_s)):
        nodes.setdefault(rank, []).append(event)
    return Trace({rank: tuple(events) for rank, events in nodes.items()}, dropped)


def _object(path: Path, memory_bytes: int | None) -> dict[str, Any]:
    try:
        if not path.is_file():
            raise UserError(f"there is no file {path}: write one with 'tpiedge run ... --trace {path}'")
        needed = 8 * path.stat().st_size  # 6.6 times its size were measured
        if memory_bytes is not None and needed > memory_bytes:
            words = f"{needed / 1e9:.1f} GB of memory, {memory_bytes / 1e9:.1f} GB are free"
            raise OutOfMemory(f"reading {path} takes {words}: trace fewer tokens")
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _no_trace(path, "it is not JSON") from None
    if not isinstance(values, dict):
        raise _no_trace(path, "it is not a JSON object")
    return values


def _event(record: dict[str, Any]) -> tuple[int, TraceEvent]:
    start_s, spent_s = float(record["ts"]) / 1e6, float(record["dur"]) / 1e6
    arguments, lane, rank = record["args"], record["cat"], int(record["pid"]) - 1
    if not 0 <= rank < 64:
        raise ValueError(f"an event of node {rank}")
    if lane not in LANES or not 0 <= start_s < math.inf or not 0 <= spent_s < math.inf:
        raise ValueError(f"an event of lane {lane!r} at {start_s} s for {spent_s} s")
    event = TraceEvent(
        lane,
        str(arguments["kind"]),
        start_s,
        start_s + spent_s,
        int(arguments.get("layer", -1)),
        int(arguments.get("step", -1)),
        int(arguments.get("bytes", 0)),
    )
    if not -1 <= event.step < 1 << 32:
        raise ValueError(f"an event of step {event.step}")
    return rank, event


def _no_trace(path: Path, why: str) -> UserError:
    return UserError(f"{path} is not a trace of 'tpiedge run --trace' ({why})")


@dataclass(frozen=True)
class StepRange:
    """Steps from `first` to `last`, inclusive. None means the first or the last step of the trace."""

    first: int | None
    last: int | None

    def __str__(self) -> str:
        if self.first == self.last and self.first is not None:
            return str(self.first)
        return ":".join("" if end is None else str(end) for end in (self.first, self.last))

    def of(self, known: Sequence[int]) -> tuple[int, ...]:
        """Returns the range's steps in the sorted `known`. Returns () if `known` lacks `first` or `last`."""
        if not known or any(end not in (None, *known) for end in (self.first, self.last)):
            return ()
        first = known[0] if self.first is None else self.first
        last = known[-1] if self.last is None else self.last
        return tuple(step for step in known if first <= step <= last)


@dataclass(frozen=True)
class Excerpt:
    """The time from `start_s` to `end_s`, and its `steps` in order."""

    start_s: float
    end_s: float
    steps: tuple[int, ...]

    @property
    def window(self) -> Interval:
        return self.start_s, self.end_s


def parse_steps(text: str) -> StepRange:
    """Reads "40", "40:44", "40:", ":44" or ":". Raises UserError."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise UserError(f"{text!r} is neither a step nor a range of steps: write 40, 40:44, 40: or :44")
    first, last = (found["only"] or found[end] for end in ("first", "last"))
    steps = StepRange(int(first) if first else None, int(last) if last else None)
    if steps.first is not None and steps.last is not None and steps.last < steps.first:
        raise UserError(f"{text!r} ends before it begins: write {steps.last}:{steps.first}")
    return steps


def excerpt_of_steps(trace: Trace, steps: Sequence[int]) -> Excerpt:
    spans = [trace.steps[step] for step in steps]
    return Excerpt(min(start for start, _ in spans), max(end for _, end in spans), tuple(steps))


def typical_excerpt(trace: Trace) -> Excerpt:
    """Returns up to three typical steps of a trace; without steps, returns the whole trace."""
    if not trace.steps:
        return Excerpt(0.0, trace.end_s, ())
    if len(trace.steps) <= _TYPICAL:
        return excerpt_of_steps(trace, sorted(trace.steps))
    spent_s = {step: end - start for step, (start, end) in trace.steps.items()}
    return excerpt_of_steps(trace, typical_steps({step: spent_s[step] for step in decode_steps(trace)}))


def decode_steps(trace: Trace) -> list[int]:
    """Returns the decode steps, or all steps if no step is a decode step."""
    headed = {event.step for events in trace.nodes.values() for event in events if event.name == "head"}
    known = sorted(trace.steps)
    return [step for step in known if step - 1 in headed] or known


def typical_steps(spent_s: Mapping[int, float]) -> Sequence[int]:
    """Returns up to three successive steps of about median time."""
    usual_s = median(spent_s.values())

    def farthest(steps: Sequence[int]) -> float:
        return max(abs(spent_s[step] - usual_s) for step in steps)

    known = sorted(spent_s)
    for count in range(_TYPICAL, 1, -1):
        windows = [known[place : place + count] for place in range(len(known) - count + 1)]
        rows = [steps for steps in windows if steps[-1] - steps[0] == count - 1]
        if rows:
            return min(rows, key=farthest)
    return [min(known, key=lambda step: farthest([step]))]


@dataclass(frozen=True)
class NodeSummary:
    """One node's times. `busy_s`: the busy seconds of each lane. `load_during_s`: the busy seconds of each lane during
    reads of weights. `read_bytes`: the bytes of such reads that ended in the excerpt."""

    rank: int
    busy_s: dict[str, float]
    load_during_s: dict[str, float]
    travel_during_compute_s: float
    read_bytes: int
    events: int
    dropped: int

    @property
    def hidden_percent(self) -> float | None:
        """The percentage of the reading time in which the node did not wait for weights."""
        load_s = self.busy_s["load"]
        return 100 * (1 - self.load_during_s["wait"] / load_s) if load_s else None

    @property
    def travel_hidden_percent(self) -> float | None:
        """The percentage of the all-reduces' travel time in which the node computed."""
        travel_s = self.busy_s["travel"]
        return 100 * self.travel_during_compute_s / travel_s if travel_s else None


def summarize(trace: Trace, start_s: float, end_s: float) -> list[NodeSummary]:
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
            if lane in ("compute", "reduce", "wait")
        },
        total(overlap(busy["travel"], busy["compute"])),
        sum(event.nbytes for event in inside if event.lane == "load" and event.end_s <= end_s),
        len(inside),
        dropped,
    )


def total(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def overlap(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    return [common for stretch in one for common in within(stretch, other)]
