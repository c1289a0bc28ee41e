"""Records a node's events in memory of a fixed size, stores them in a file, and computes with intervals.

Threads take places from one counter, without a lock. Events beyond the last place are only counted.
"""

import json
import mmap
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Protocol, TypeAlias

Interval: TypeAlias = tuple[float, float]  # (start, end)

#: The kinds of a node's work. The first three are from figure 4 of TPI-LLM. "wait": the node waits for weights.
#: "travel": an all-reduce is on its way while the node may do other work. "bring" and "leave": pages of the KV cache
#: come from disk or go there.
LANES = ("compute", "reduce", "load", "wait", "travel", "bring", "leave")
COMPUTE, REDUCE, LOAD, WAIT, TRAVEL, BRING, LEAVE = range(len(LANES))

#: start, end (0: not filled), bytes, layer, step, name, lane.
_RECORD = struct.Struct("=ddqiIHB")


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A recorded event. `layer` and `step` are -1 if unknown."""

    lane: str
    name: str
    start_s: float
    end_s: float
    layer: int = -1
    step: int = -1
    nbytes: int = 0

    @property
    def span(self) -> Interval:
        return self.start_s, self.end_s


@dataclass(frozen=True)
class TracePart:
    """The events of one node, in seconds of time.perf_counter. `dropped`: the number of events without a place."""

    rank: int
    events: tuple[TraceEvent, ...]
    dropped: int


class EventSink(Protocol):
    """Takes events from any thread. `name` returns the number that `add` takes for `text`."""

    def name(self, text: str, /) -> int: ...

    def add(
        self, lane: int, name: int, start: float, end: float, layer: int = -1, step: int = 0, /
    ) -> None: ...


class Tracer:
    """Records at most `limit` events. Only one thread may call `name`."""

    def __init__(self, limit: int = 1 << 18) -> None:
        self._limit = limit
        self._places = count()
        self._records = mmap.mmap(-1, limit * _RECORD.size)  # pages become resident when they are filled
        self._names: dict[str, int] = {}

    def name(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def add(
        self, lane: int, name: int, start: float, end: float, layer: int = -1, step: int = 0, nbytes: int = 0
    ) -> None:
        """Records an event. Times are seconds of time.perf_counter. `step` 0 means none."""
        place = next(self._places)
        if place < self._limit:
            offset = place * _RECORD.size
            _RECORD.pack_into(self._records, offset, start, end, nbytes, layer, step, name, lane)

    def write(self, path: Path, rank: int) -> None:
        """Writes a file for `read_part`. Call it once. Raises OSError."""
        taken = next(self._places)
        kept = min(taken, self._limit)
        header = {"rank": rank, "names": list(self._names), "events": kept, "dropped": taken - kept}
        unfinished = path.with_name(f"{path.name}.unfinished")
        with unfinished.open("wb") as file:
            file.write(json.dumps(header).encode() + b"\n")
            file.write(memoryview(self._records)[: kept * _RECORD.size])
        unfinished.replace(path)


def read_part(path: Path) -> TracePart:
    """Reads a file of `Tracer.write`. Events are sorted by start. Raises OSError."""
    line, _, records = path.read_bytes().partition(b"\n")
    header = json.loads(line)
    events = [
        TraceEvent(LANES[lane], header["names"][name], start, end, layer, step or -1, nbytes)
        for start, end, nbytes, layer, step, name, lane in _RECORD.iter_unpack(records)
        if end
    ]
    return TracePart(header["rank"], tuple(sorted(events, key=attrgetter("start_s"))), header["dropped"])


def union(intervals: Iterable[Interval], gap: float = 0.0) -> list[Interval]:
    """Returns the union as disjoint, sorted intervals. Closes gaps of at most `gap`."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > start:
            found.append((start, end))
    return found


def without(stretch: Interval, holes: Sequence[Interval]) -> list[Interval]:
    """Returns the parts of `stretch` outside `holes`. `holes` must come from `union`."""
    left, start = [], stretch[0]
    for hole_start, hole_end in within(stretch, holes):
        left.append((start, hole_start))
        start = hole_end
    left.append((start, stretch[1]))
    return [(start, end) for start, end in left if end > start]


def within(stretch: Interval, others: Sequence[Interval]) -> Iterator[Interval]:
    """Yields the parts of `others` inside `stretch`. `others` must come from `union`."""
    first = bisect_right(others, stretch[0], key=itemgetter(1))
    last = bisect_left(others, stretch[1], key=itemgetter(0))
    return clip(others[first:last], *stretch)


def clip(intervals: Iterable[Interval], start: float, end: float) -> Iterator[Interval]:
    for first, last in intervals:
        if first < end and last > start:
            yield max(first, start), min(last, end)
