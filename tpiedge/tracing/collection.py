"""Joins the nodes' parts of a trace in one file in Chrome's trace event format.

The file shows a node as a process and a lane (a kind of work) as a thread. Simultaneous events of a lane get several
threads. Times are microseconds since the first event.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tpiedge.errors import UserError, cannot_write
from tpiedge.tracing.tracer import LANES, Interval, TraceEvent, TracePart, read_part, union, without

DROPPED = "tpiedge_dropped"  # key of the numbers of dropped events by rank

_LANE_THREADS = 100
_NODE_THREADS = len(LANES) * _LANE_THREADS * 10

_Record = dict[str, Any]


@dataclass(frozen=True)
class Joined:
    """Counts of events in a trace. `missing`: the ranks without a part."""

    events: int
    dropped: int
    missing: tuple[int, ...]


class Collection:
    """A temporary folder beside `path` for the parts of a trace. The end of the `with` block deletes the folder. Raises
    UserError, DiskFull."""

    def __init__(self, path: Path) -> None:
        self._path = writable(path)
        try:
            folder = tempfile.mkdtemp(prefix=f".{self._path.name}.", suffix=".partial", dir=self._path.parent)
        except OSError as error:
            raise cannot_write(path, error) from None
        self._folder = Path(folder)

    def part(self, rank: int) -> Path:
        return self._folder / f"node-{rank}"

    def join(self, nodes: int) -> Joined:
        """Joins the parts of the ranks below `nodes`. Without any part, writes no trace. Raises UserError, DiskFull."""
        paths = [self.part(rank) for rank in range(nodes)]
        missing = tuple(rank for rank, path in enumerate(paths) if not path.exists())
        paths = [path for path in paths if path.exists()]
        starts: list[float] = []
        events = dropped = 0
        unfinished = self._folder / "joined"
        try:
            for part in map(read_part, paths):  # one at a time, twice: each may take a hundred megabytes
                starts += [event.start_s for event in part.events[:1]]
                events += len(part.events)
                dropped += part.dropped
            if starts:
                write_trace(unfinished, map(read_part, paths), min(starts))
                unfinished.replace(self._path)
            elif missing:  # perhaps the disk is full: then this raises
                unfinished.write_bytes(bytes(4096))
        except OSError as error:
            raise cannot_write(self._path, error) from None
        return Joined(events, dropped, missing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder)


def writable(path: Path) -> Path:
    """Returns `path` with links resolved. Raises UserError if a file there cannot be written."""
    found = Path(os.path.realpath(path))
    try:
        there = found.exists()
        if there and not found.is_file():
            raise UserError(f"{path} is not a file: give the path of one, which is made or replaced")
        if not found.parent.is_dir():
            raise UserError(f"cannot write {path}: there is no folder {found.parent}")
        if not os.access(found if there else found.parent, os.W_OK):
            raise UserError(f"cannot write {path}: permission denied")
    except OSError as error:
        raise cannot_write(path, error) from None
    return found


def write_trace(path: Path, parts: Iterable[TracePart], origin_s: float) -> None:
    """Writes the parts in order. `origin_s` becomes time 0. Raises OSError."""
    dropped: dict[int, int] = {}
    with path.open("w", encoding="ascii") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        separator = ""
        for part in parts:
            dropped[part.rank] = part.dropped
            for record in _records(part, origin_s):
                file.write(separator + json.dumps(record))
                separator = ",\n"
        file.write(f'\n], "otherData": {json.dumps({DROPPED: dropped})}}}\n')


def _records(part: TracePart, origin_s: float) -> Iterator[_Record]:
    pid = part.rank + 1  # 0 is the kernel's
    named: _Record = {"ph": "M", "pid": pid}
    yield {**named, "name": "process_name", "tid": 0, "args": {"name": f"node {part.rank}"}}
    events = tuple(_compute_or_wait(part.events))
    for number, lane in enumerate(LANES):
        first = pid * _NODE_THREADS + number * _LANE_THREADS
        threads = {first: lane}
        of_lane = [event for event in events if event.lane == lane]
        for event, row in zip(of_lane, rows(event.span for event in of_lane), strict=True):
            threads.setdefault(first + row, f"{lane} {row + 1}")
            yield _record(pid, first + row, event, origin_s)
        for thread, label in threads.items():
            yield {**named, "name": "thread_name", "tid": thread, "args": {"name": label}}
            yield {**named, "name": "thread_sort_index", "tid": thread, "args": {"sort_index": thread}}


def _compute_or_wait(events: tuple[TraceEvent, ...]) -> Iterator[TraceEvent]:
    # The head's computation includes waits for its tiles.
    waits = union(event.span for event in events if event.lane == "wait")
    for event in events:
        if event.lane != "compute":
            yield event
            continue
        for start, end in without(event.span, waits):
            yield replace(event, start_s=start, end_s=end)


def _record(pid: int, thread: int, event: TraceEvent, origin_s: float) -> _Record:
    details = {"kind": event.name, "layer": event.layer, "step": event.step, "bytes": event.nbytes or -1}
    return {
        "ph": "X",
        "name": f"{event.name} L{event.layer}" if event.layer >= 0 else event.name,
        "cat": event.lane,
        "pid": pid,
        "tid": thread,
        "ts": round((event.start_s - origin_s) * 1e6, 3),
        "dur": round((event.end_s - event.start_s) * 1e6, 3),
        "args": {name: value for name, value in details.items() if value != -1},
    }


def rows(intervals: Iterable[Interval]) -> Iterator[int]:
    """Yields each interval's row, so that no row has overlapping intervals. `intervals` must be sorted by start."""
    busy_until: list[float] = []
    for start, end in intervals:
        row = next((row for row, until in enumerate(busy_until) if until <= start), len(busy_until))
        busy_until[row : row + 1] = [end]
        yield row
