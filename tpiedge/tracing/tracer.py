"""What a node does when, recorded in memory of a fixed size and written to a file when the node ends; and stretches of
time.

A record is packed into its place by one call, without a lock: the engine thread and the reading threads take places
from one counter. What comes when all places are taken is counted, and said.
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

Interval: TypeAlias = tuple[float, float]
"""A stretch of time, (start, end)."""

#: As in figure 4 of TPI-LLM; what the engine waits for weights; all-reduces from their beginning to their end, where
#: the engine does something else in between.
LANES = ("compute", "reduce", "load", "wait", "travel")
COMPUTE, REDUCE, LOAD, WAIT, TRAVEL = range(len(LANES))

#: start, end, bytes, layer, step, name, lane. An end of 0 is a place that was not filled.
_RECORD = struct.Struct("=ddqiIHB")


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Something that took from `start_s` to `end_s`. `layer` and `step` are -1 where there is none."""

    lane: str
    name: str
    start_s: float
    end_s: float
    layer: int = -1
    step: int = -1
    nbytes: int = 0

    @property
    def span(self) -> Interval:
        """From when to when."""
        return self.start_s, self.end_s


@dataclass(frozen=True)
class TracePart:
    """What one node recorded; `dropped` events more had no room. Times are of this computer's monotonic clock."""

    rank: int
    events: tuple[TraceEvent, ...]
    dropped: int


class EventSink(Protocol):
    """Takes what goes on, from any thread, as a Tracer does."""

    def name(self, text: str, /) -> int: ...

    def add(
        self,
        lane: int,
        name: int,
        start: float,
        end: float,
        layer: int = -1,
        step: int = 0,
        nbytes: int = 0,
        /,
    ) -> None: ...


class Tracer:
    """Room for `limit` events. Any thread may `add`, and ask for the number of a `name` that has one; one thread makes
    new ones."""

    def __init__(self, limit: int = 1 << 18) -> None:
        self._limit = limit
        self._places = count()
        self._records = mmap.mmap(-1, limit * _RECORD.size)  # pages become resident when they are filled
        self._names: dict[str, int] = {}

    def name(self, text: str) -> int:
        """The number of a name, for `add`."""
        return self._names.setdefault(text, len(self._names))

    def add(
        self, lane: int, name: int, start: float, end: float, layer: int = -1, step: int = 0, nbytes: int = 0
    ) -> None:
        """Record what went on in `lane`, in seconds of time.perf_counter, which all processes of a computer share.
        `step` counts from 1; 0: of no step."""
        place = next(self._places)
        if place < self._limit:
            offset = place * _RECORD.size
            _RECORD.pack_into(self._records, offset, start, end, nbytes, layer, step, name, lane)

    def write(self, path: Path, rank: int) -> None:
        """The part of a trace that `read_part` reads, whole or not at all. Once, at the end. Raises OSError."""
        taken = next(self._places)
        kept = min(taken, self._limit)
        header = {"rank": rank, "names": list(self._names), "events": kept, "dropped": taken - kept}
        unfinished = path.with_name(f"{path.name}.unfinished")
        with unfinished.open("wb") as file:
            file.write(json.dumps(header).encode() + b"\n")
            file.write(memoryview(self._records)[: kept * _RECORD.size])
        unfinished.replace(path)


def read_part(path: Path) -> TracePart:
    """What a Tracer wrote, in the order of the starts. Raises OSError."""
    line, _, records = path.read_bytes().partition(b"\n")
    header = json.loads(line)
    events = [
        TraceEvent(LANES[lane], header["names"][name], start, end, layer, step or -1, nbytes)
        for start, end, nbytes, layer, step, name, lane in _RECORD.iter_unpack(records)
        if end
    ]
    return TracePart(header["rank"], tuple(sorted(events, key=attrgetter("start_s"))), header["dropped"])


def union(intervals: Iterable[Interval], gap: float = 0.0) -> list[Interval]:
    """What is covered by any of them; stretches that are `gap` apart or less become one."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > start:
            found.append((start, end))
    return found


def without(stretch: Interval, holes: Sequence[Interval]) -> list[Interval]:
    """What is left of `stretch` outside a union."""
    left, start = [], stretch[0]
    for hole_start, hole_end in within(stretch, holes):
        left.append((start, hole_start))
        start = hole_end
    left.append((start, stretch[1]))
    return [(start, end) for start, end in left if end > start]


def within(stretch: Interval, others: Sequence[Interval]) -> Iterator[Interval]:
    """What of a union lies in `stretch`."""
    first = bisect_right(others, stretch[0], key=itemgetter(1))
    last = bisect_left(others, stretch[1], key=itemgetter(0))
    return clip(others[first:last], *stretch)


def clip(intervals: Iterable[Interval], start: float, end: float) -> Iterator[Interval]:
    """What of them lies between `start` and `end`."""
    for first, last in intervals:
        if first < end and last > start:
            yield max(first, start), min(last, end)
