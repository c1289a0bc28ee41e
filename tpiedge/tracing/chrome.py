"""The trace of a cluster as a file: Chrome's trace event format, which ui.perfetto.dev and chrome://tracing show.

A node is a process, a lane a thread; a lane in which several things go on at once (reads) has a thread for each.
Times in the file are microseconds since the first event of any node.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tpiedge.errors import OutOfMemory, UserError
from tpiedge.tracing.intervals import rows, union, without
from tpiedge.tracing.tracer import LANES, TraceEvent, TracePart

_US = 1e6
_DROPPED = "tpiedge_dropped"
#: What two dozen nodes write whose room for events is full.
_MAX_BYTES = 1 << 30
#: Bytes of memory that a byte of the file takes while it is read: 6.6 were measured.
_READING = 8
_MAX_NODES = 64  # of 'tpiedge run'
_MAX_STEP = (1 << 32) - 1  # a record's
_LANE_THREADS = 100
_NODE_THREADS = len(LANES) * _LANE_THREADS * 10

_Record = dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """Events by rank in the order of their starts, in seconds since the first one; how many had no room."""

    nodes: Mapping[int, tuple[TraceEvent, ...]]
    dropped: Mapping[int, int]

    @property
    def end_s(self) -> float:
        """When the last event ends."""
        return max(event.end_s for events in self.nodes.values() for event in events)

    @cached_property
    def steps(self) -> Mapping[int, tuple[float, float]]:
        """From when to when each step was computed, on any node. Steps that took no time are not there."""
        found: dict[int, tuple[float, float]] = {}
        for event in (event for events in self.nodes.values() for event in events if event.step > 0):
            start, end = found.get(event.step, (math.inf, 0.0))
            found[event.step] = (min(start, event.start_s), max(end, event.end_s))
        return {step: (start, end) for step, (start, end) in found.items() if end > start}


def write_trace(path: Path, parts: Iterable[TracePart], origin_s: float) -> None:
    """Write the parts one after the other, times since `origin_s`. Raises OSError."""
    dropped: dict[int, int] = {}
    with path.open("w", encoding="ascii") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        separator = ""
        for part in parts:
            dropped[part.rank] = part.dropped
            for record in _records(part, origin_s):
                file.write(separator + json.dumps(record))
                separator = ",\n"
        file.write(f'\n], "otherData": {json.dumps({_DROPPED: dropped})}}}\n')


def read_trace(path: Path, memory_bytes: int | None = None) -> Trace:
    """What write_trace wrote. Raises UserError for a file that cannot be read, or is something else, and OutOfMemory
    for one that takes more than `memory_bytes` to read."""
    values = _object(path, memory_bytes)
    records, other = values.get("traceEvents"), values.get("otherData")
    if not isinstance(records, list):
        raise _no_trace(path, "it has no list of events")
    if not isinstance(other, dict) or _DROPPED not in other:
        raise _no_trace(path, "another program wrote it")
    try:
        found = [_event(record) for record in records if record["ph"] == "X"]
        dropped = {int(rank): int(number) for rank, number in other[_DROPPED].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _no_trace(path, f"an event in it is damaged: {type(error).__name__}: {error}") from None
    if not found:
        raise _no_trace(path, "nothing happened in it")
    nodes: dict[int, list[TraceEvent]] = {}
    for rank, event in sorted(found, key=lambda item: (item[0], item[1].start_s)):
        nodes.setdefault(rank, []).append(event)
    return Trace({rank: tuple(events) for rank, events in nodes.items()}, dropped)


def _records(part: TracePart, origin_s: float) -> Iterator[_Record]:
    pid = part.rank + 1  # 0 is the kernel's
    yield _name("process_name", pid, 0, f"node {part.rank}")
    threads = {_thread(part.rank, number, 0): lane for number, lane in enumerate(LANES)}
    for thread, event in _laid_out(part):
        threads.setdefault(thread, f"{event.lane} {thread % _LANE_THREADS + 1}")
        yield _record(pid, thread, event, origin_s)
    for thread, label in threads.items():
        yield _name("thread_name", pid, thread, label)
        order = {"sort_index": thread}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": thread, "args": order}


def _laid_out(part: TracePart) -> Iterator[tuple[int, TraceEvent]]:
    """Every event in a thread of its lane in which nothing else goes on at that time."""
    events = tuple(_compute_or_wait(part.events))
    for number, lane in enumerate(LANES):
        of_lane = [event for event in events if event.lane == lane]
        for event, row in zip(of_lane, rows(event.span for event in of_lane), strict=True):
            yield _thread(part.rank, number, row), event


def _compute_or_wait(events: tuple[TraceEvent, ...]) -> Iterator[TraceEvent]:
    """The engine thread does not compute while it waits: the head waits for its tiles within its computation."""
    waits = union(event.span for event in events if event.lane == "wait")
    for event in events:
        if event.lane != "compute":
            yield event
            continue
        for start, end in without(event.span, waits):
            yield replace(event, start_s=start, end_s=end)


def _thread(rank: int, lane: int, row: int) -> int:
    return (rank + 1) * _NODE_THREADS + lane * _LANE_THREADS + row


def _name(kind: str, pid: int, thread: int, label: str) -> _Record:
    return {"ph": "M", "name": kind, "pid": pid, "tid": thread, "args": {"name": label}}


def _record(pid: int, thread: int, event: TraceEvent, origin_s: float) -> _Record:
    arguments: _Record = {"kind": event.name}
    if event.layer >= 0:
        arguments["layer"] = event.layer
    if event.step >= 0:
        arguments["step"] = event.step
    if event.nbytes:
        arguments["bytes"] = event.nbytes
    return {
        "ph": "X",
        "name": f"{event.name} L{event.layer}" if event.layer >= 0 else event.name,
        "cat": event.lane,
        "pid": pid,
        "tid": thread,
        "ts": round((event.start_s - origin_s) * _US, 3),
        "dur": round((event.end_s - event.start_s) * _US, 3),
        "args": arguments,
    }


def _object(path: Path, memory_bytes: int | None) -> _Record:
    try:
        if not path.is_file():
            raise UserError(f"there is no file {path}: write one with 'tpiedge run ... --trace {path}'")
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise _no_trace(path, "it is larger than 1 GiB")
        if memory_bytes is not None and size * _READING > memory_bytes:
            words = f"{size * _READING / 1e9:.1f} GB of memory, {memory_bytes / 1e9:.1f} GB are free"
            raise OutOfMemory(f"reading {path} takes {words}: trace fewer tokens")
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _no_trace(path, "it is not JSON") from None
    if not isinstance(values, dict):
        raise _no_trace(path, "it is not a JSON object")
    return values


def _event(record: _Record) -> tuple[int, TraceEvent]:
    """(rank, event). Raises ValueError, KeyError, TypeError."""
    start_s, spent_s = float(record["ts"]) / _US, float(record["dur"]) / _US
    arguments, lane, rank = record["args"], record["cat"], int(record["pid"]) - 1
    if not 0 <= rank < _MAX_NODES:
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
    if not -1 <= event.step <= _MAX_STEP:
        raise ValueError(f"an event of step {event.step}")
    return rank, event


def _no_trace(path: Path, why: str) -> UserError:
    return UserError(f"{path} is not a trace of 'tpiedge run --trace' ({why})")
