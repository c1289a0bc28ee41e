import errno
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tpiedge.errors import DiskFull, UserError
from tpiedge.lab.traces import read_trace
from tpiedge.tracing import collection as module
from tpiedge.tracing.collection import Collection, Joined
from tpiedge.tracing.tracer import COMPUTE, LOAD, REDUCE, WAIT, TraceEvent, Tracer


def record(path: Path, rank: int, *events: tuple[int, str, float, float], limit: int = 100) -> None:
    tracer = Tracer(limit)
    for lane, name, start, end in events:
        tracer.add(lane, tracer.name(name), start, end, 2 if lane == LOAD else -1, lane == COMPUTE)
    tracer.write(path, rank)


def joined(path: Path) -> Joined:
    """Two nodes, of which one waits within its head, and reads two things at once."""
    with Collection(path) as collection:
        record(
            collection.part(0),
            0,
            (COMPUTE, "head", 10.0, 11.0),
            (WAIT, "head", 10.25, 10.5),
            (LOAD, "gate", 10.0, 10.5),
            (LOAD, "up", 10.25, 10.75),
            (LOAD, "down", 10.5, 11.0),
        )
        record(collection.part(1), 1, (REDUCE, "plan", 9.5, 10.0), (REDUCE, "plan", 10.0, 10.5), limit=1)
        return collection.join(2)


def test_traces_of_two_nodes_join_in_one_file(tmp_path: Path) -> None:
    assert joined(tmp_path / "t.json") == Joined(6, 1, ())
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    trace = read_trace(tmp_path / "t.json")
    assert trace.dropped == {0: 0, 1: 1}
    assert trace.nodes[1] == (TraceEvent("reduce", "plan", 0.0, 0.5),)
    assert [event for event in trace.nodes[0] if event.lane == "load"] == [
        TraceEvent("load", "gate", 0.5, 1.0, 2),
        TraceEvent("load", "up", 0.75, 1.25, 2),
        TraceEvent("load", "down", 1.0, 1.5, 2),
    ]
    # The engine does not compute while it waits.
    assert [event for event in trace.nodes[0] if event.lane != "load"] == [
        TraceEvent("compute", "head", 0.5, 0.75, step=1),
        TraceEvent("wait", "head", 0.75, 1.0),
        TraceEvent("compute", "head", 1.0, 1.5, step=1),
    ]


def test_trace_file_follows_perfetto_format(tmp_path: Path) -> None:
    """The format's own rules: named processes and threads, and nothing that goes on at once in a thread."""
    joined(tmp_path / "t.json")
    records: list[dict[str, Any]] = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {record["ph"] for record in records} == {"M", "X"}
    processes = {r["pid"]: r["args"]["name"] for r in records if r["name"] == "process_name"}
    assert processes == {1: "node 0", 2: "node 1"}
    threads = {r["tid"]: (r["pid"], r["args"]["name"]) for r in records if r["name"] == "thread_name"}
    lanes = ["bring", "compute", "leave", "load", "reduce", "travel", "wait"]
    assert sorted(threads.values()) == sorted(
        [*((pid, lane) for pid in (1, 2) for lane in lanes), (1, "load 2")]
    )
    assert list(threads) == sorted(threads)
    by_thread: dict[int, list[dict[str, Any]]] = {}
    for record in (record for record in records if record["ph"] == "X"):
        assert threads[record["tid"]][0] == record["pid"]
        assert threads[record["tid"]][1].split()[0] == record["cat"]
        by_thread.setdefault(record["tid"], []).append(record)
    for found in by_thread.values():
        assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in pairwise(found))


def test_trace_is_written_through_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "t.json")
    joined(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert read_trace(tmp_path / "t.json").nodes


def test_nodes_without_a_trace_are_reported(tmp_path: Path) -> None:
    with Collection(tmp_path / "t.json") as collection:
        record(collection.part(1), 1, (COMPUTE, "ffn", 1.0, 2.0))
        assert collection.join(3) == Joined(1, 0, (0, 2))
    assert list(read_trace(tmp_path / "t.json").nodes) == [1]


def test_without_events_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("old")
    with Collection(tmp_path / "t.json") as collection:
        record(collection.part(0), 0)
        assert collection.join(2) == Joined(0, 0, (1,))
    assert (tmp_path / "t.json").read_text() == "old"


def test_failed_write_keeps_the_existing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "t.json").write_text("old")
    monkeypatch.setattr(module, "write_trace", full)
    with pytest.raises(DiskFull, match=r"no space left for .*t\.json"):
        joined(tmp_path / "t.json")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("t.json", "old")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("missing/t.json", "there is no folder"),
        (".", "is not a file"),
        ("/dev/null", "is not a file"),
        ("x" * 300, "File name too long"),
    ],
)
def test_unwritable_path_is_refused_at_once(tmp_path: Path, name: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        Collection(tmp_path / name)
    assert not list(tmp_path.iterdir())


GOOD: dict[str, Any] = {
    "ph": "X", "cat": "load", "pid": 1, "tid": 1, "ts": 0, "dur": 1, "args": {"kind": "up"},
}  # fmt: skip


def file_with(*events: object) -> str:
    return json.dumps({"traceEvents": events, "otherData": {"tpiedge_dropped": {}}})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("{}", "it has no list of events"),
        ('{"traceEvents": [{"ph": "B"}]}', "another program wrote it"),
        ('{"traceEvents": [], "otherData": {}}', "another program wrote it"),
        ('{"traceEvents": [], "otherData": {"tpiedge_dropped": 1}}', "AttributeError"),
        (file_with(), "nothing happened in it"),
        (file_with({**GOOD, "cat": "zebra"}), "an event of lane 'zebra'"),
        (file_with({**GOOD, "ts": -1}), "ValueError"),
        (file_with({**GOOD, "dur": float("nan")}), "ValueError"),
        (file_with({**GOOD, "ts": 10**400}), "OverflowError"),
        (file_with({**GOOD, "args": None}), "TypeError"),
        (file_with({**GOOD, "args": {"kind": "up", "step": 1 << 32}}), "an event of step 4294967296"),
    ],
)
def test_invalid_trace_file_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "t.json").write_text(content, encoding="latin-1")
    with pytest.raises(UserError, match=r"t\.json is not a trace of 'tpiedge run --trace' \(") as refusal:
        read_trace(tmp_path / "t.json")
    assert expected in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
