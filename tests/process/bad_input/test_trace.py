"""Traces that cannot be written, read or drawn."""

import errno
import json
import sys

import pytest

from tests.process.bad_input.refusal import RESOURCE, run_model

EVENT = {"ph": "X", "cat": "load", "pid": 1, "tid": 1, "ts": 5e6, "dur": 1e6, "args": {"kind": "up"}}


@pytest.fixture
def good(tmp_path):
    """The trace of one read, from second 5 to second 6."""
    path = tmp_path / "good.json"
    path.write_text(json.dumps({"traceEvents": [EVENT], "otherData": {"tpiedge_dropped": {"0": 0}}}))
    return path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("missing/t.json", "there is no folder"),
        ("", "it is empty: give a path"),
        (".", "is a directory"),
        ("/dev/full", "is not a file"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_trace_that_cannot_be_written_is_refused_before_anything_starts(
    fails, cache, references, tmp_path, monkeypatch, path, expected
):
    monkeypatch.chdir(tmp_path)
    assert expected in fails(*run_model(references("openllama").folder), "--trace", path)
    assert not cache.exists()


def test_what_is_refused_later_leaves_no_trace(fails, tmp_path):
    assert "no model 'nope'" in fails(*run_model("nope"), "--trace", tmp_path / "t.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "there is no file"),
        (b"", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b'{"traceEvents": []}', "another program wrote it"),
    ],
)
def test_what_is_no_trace(fails, tmp_path, content, expected):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    line = fails("trace", path)
    assert expected in line
    assert str(path) in line


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--steps", "2"), "good.json has no steps: choose a part of it by --from and --to"),
        (("--steps", ":"), "--steps :: "),
        (("--steps", "5:2"), "'--steps': '5:2' ends before it begins: write 2:5"),
        (("--steps", "2-5"), "'2-5' is neither a step nor a range of steps: write 40, 40:44, 40: or :44"),
        (("--steps", "two"), "'two' is neither a step nor a range of steps"),
        (("--steps", ""), "'' is neither a step nor a range of steps"),
        (("--steps", "2", "--to", 3), "give either --steps or --from and --to"),
        (("--from", 6), "--from 6 leaves nothing: the trace goes from 0 to 6.000 s"),
        (("--from", 3, "--to", 2), "--from 3 --to 2 leaves nothing"),
        (("--to", 0), "leaves nothing"),
        (("--from", -1), "'--from': -1.0 is not in the range"),
        (("--png", "missing/t.png"), "there is no folder"),
        (("--png", "/dev/full"), "is not a file"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_shown(fails, good, flags, expected):
    assert expected in fails("trace", good, *flags)


@pytest.mark.parametrize("asked", ["0", "0:7", "5", "9:12", "10:", ":10"])
def test_steps_outside_of_the_trace(fails, good, asked):
    """Of steps 6 to 9. A picture is not begun."""
    args = [{"kind": "up", "step": step} for step in range(6, 10)]
    events = [{**EVENT, "ts": 5e6 * place, "args": given} for place, given in enumerate(args)]
    good.write_text(json.dumps({"traceEvents": events, "otherData": {"tpiedge_dropped": {}}}))
    line = fails("trace", good, "--steps", asked, "--png", good.parent / "x.png")
    assert line == f"--steps {asked}: {good} has steps 6:9: stay within them, as in --steps 7:9"
    assert list(good.parent.iterdir()) == [good]


@pytest.mark.parametrize("name", ["good.json", "./good.json", "link"])
def test_the_trace_is_not_drawn_over(fails, good, name):
    (good.parent / "link").symlink_to(good)
    before = good.read_text()
    assert "is the trace itself" in fails("trace", good, "--png", good.parent / name)
    assert "is the trace itself" in fails("trace", good.parent / "link", "--png", good.parent / name)
    assert good.read_text() == before


def test_a_trace_that_memory_is_too_small_for(fails, good, monkeypatch):
    monkeypatch.setattr("tpiedge.lab.verbs.trace.available_memory_bytes", lambda: 1000)
    assert "GB of memory, 0.0 GB are free" in fails("trace", good, status=RESOURCE)


@pytest.mark.parametrize("pid", [0, 65, -3])
def test_a_trace_of_more_nodes_than_a_cluster_has(fails, good, pid):
    good.write_text(good.read_text().replace('"pid": 1', f'"pid": {pid}'))
    assert f"an event of node {pid - 1}" in fails("trace", good)


def test_a_picture_whose_name_is_too_long(fails, good):
    assert "File name too long" in fails("trace", good, "--png", good.parent / ("x" * 300))


def test_a_picture_that_cannot_be_finished(fails, good, monkeypatch):
    """The disk is gone, for the picture and for what is cleared away after it."""
    pytest.importorskip("matplotlib", reason="software: no matplotlib")

    def gone(*_arguments, **_flags):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", gone)
    monkeypatch.setattr("pathlib.Path.unlink", gone)
    assert "x.png: Input/output error" in fails("trace", good, "--png", good.parent / "x.png")


def test_a_picture_needs_matplotlib(fails, good, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "tpiedge.lab.plots.timeline", raising=False)
    for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    assert "--png needs matplotlib: pip install 'tpiedge[plot]'" in fails(
        "trace", good, "--png", good.parent / "x.png"
    )
