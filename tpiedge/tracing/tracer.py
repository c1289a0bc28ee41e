"""What a node does when, recorded in memory of a fixed size and written to a file when the node ends.

A record is packed into its place by one call, without a lock: the engine thread and the reading threads take places
from one counter. What comes when all places are taken is counted, and said.
"""

import json
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol, TypeAlias

from tpiedge.errors import InternalError

Interval: TypeAlias = tuple[float, float]
"""A stretch of time, (start, end)."""

#: As in figure 4 of TPI-LLM; what the engine waits for weights; all-reduces from their beginning to their end, where
#: the engine does something else in between.
LANES = ("compute", "reduce", "load", "wait", "travel")
COMPUTE, REDUCE, LOAD, WAIT, TRAVEL = range(len(LANES))

_LIMIT = 1 << 18
_MAX_NAMES = 1 << 16
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
    """Takes what goes on, from any thread."""

    def name(self, text: str, /) -> int:
        """The number of a name, for `add`."""
        ...

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
    ) -> None:
        """Something went on in `lane` from `start` to `end`, in seconds of time.perf_counter. `step` counts from 1; 0:
        of no step."""
        ...


class Tracer:
    """Room for `limit` events. Any thread may `add`, and ask for the number of a `name` that has one; one thread makes
    new ones.

    Times are seconds of time.perf_counter, which all processes of a computer share.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._places = count()
        self._records = mmap.mmap(-1, limit * _RECORD.size)  # pages become resident when they are filled
        self._names: dict[str, int] = {}

    def name(self, text: str) -> int:
        """The number of a name, for `add`."""
        if text not in self._names and len(self._names) == _MAX_NAMES:
            raise InternalError(f"a trace has room for {_MAX_NAMES} names")
        return self._names.setdefault(text, len(self._names))

    def add(
        self, lane: int, name: int, start: float, end: float, layer: int = -1, step: int = 0, nbytes: int = 0
    ) -> None:
        """Record what went on in `lane`. `step` counts from 1; 0: of no step."""
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
    events = sorted(_events(header["names"], records), key=lambda event: event.start_s)
    return TracePart(header["rank"], tuple(events), header["dropped"])


def _events(names: list[str], records: bytes) -> Iterator[TraceEvent]:
    for start, end, nbytes, layer, step, name, lane in _RECORD.iter_unpack(records):
        if end:
            yield TraceEvent(LANES[lane], names[name], start, end, layer, step or -1, nbytes)
