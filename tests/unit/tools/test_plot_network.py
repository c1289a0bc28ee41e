"""The pictures of network benchmarks: really drawn, from records as the benchmarks print them."""

import json
import struct
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tools.network_plots.records import load, read_allreduces, read_decodes
from tools.network_plots.sweeps import AXES, latencies, series_along
from tpiedge.errors import UserError

TOOL = Path(__file__).parents[3] / "tools" / "plot_network.py"
DEVICES, _, _, LATENCY = AXES


def spread(median: float) -> dict[str, float]:
    return {"median": median, "min": 0.9 * median, "max": 1.2 * median}


def result(collective: str, **more) -> dict[str, object]:
    row = {
        "testbed": "paper-8",
        "latency_s": 0.001,
        "rate_bytes_per_s": 37.5e6,
        "nodes": 4,
        "bytes": 4,
        "collective": collective,
        "wire": "f32",
        "seconds": spread(0.003),
        "predicted_s": 0.0029,
    }
    return row | more


def allreduces(*rows: dict[str, object]) -> dict[str, object]:
    return {"rounds": 10, "repeats": 5, "results": list(rows)}


def setting(nodes: int = 4, **more) -> dict[str, object]:
    row = {
        "nodes": nodes,
        "threads": 1,
        "collective": "mesh",
        "latency_s": 0.001,
        "bytes_per_s": 37.5e6,
        "s_per_token": spread(0.4),
        "layers_s_per_token": spread(0.3),
        "prefill_tokens_per_s": spread(40.0),
    }
    return row | more


ALONE = {"nodes": 1, "threads": 1, "collective": "none", "s_per_token": spread(1.0)}


def decodes(*rows: dict[str, object]) -> dict[str, object]:
    return {"model": "tinyllama", "settings": {str(place): row for place, row in enumerate(rows)}}


def plot(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(TOOL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def size_of(path: Path) -> tuple[int, int]:
    """(width, height) of a PNG in pixels."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:])


def test_a_file_of_each_kind_gives_three_pictures(tmp_path):
    rows = [
        result(collective, latency_s=ms / 1e3, nodes=nodes, bytes=nbytes)
        for collective, ms, nodes, nbytes in product(("star", "mesh", "ring"), (1, 5), (2, 8), (4, 32768))
    ]
    (tmp_path / "a.json").write_text(json.dumps(allreduces(*rows)))
    (tmp_path / "d.json").write_text(json.dumps(decodes(ALONE, setting(2), setting(4), setting(threads=2))))
    ended = plot(tmp_path / "a.json", tmp_path / "d.json", "--out", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    names = ["allreduce-payload.png", "allreduce-latency.png", "decode.png"]
    assert ended.stdout.split() == [str(tmp_path / name) for name in names]
    # Four panels in two columns; two panels side by side; two panels again.
    sizes = [size_of(tmp_path / name) for name in names]
    assert sizes == [(1560, 1245), (1560, 660), (1560, 660)]
    assert not list(tmp_path.glob("*.partial"))


def test_loopback_has_no_latency_to_draw(tmp_path):
    row = result("star", testbed=None, latency_s=None, rate_bytes_per_s=None, predicted_s=None)
    found = read_allreduces(allreduces(row), "a.json")
    assert (found[0].network, found[0].latency_s, found[0].predicted_s) == ("loopback", 0.0, None)
    (tmp_path / "a.json").write_text(json.dumps(allreduces(row)))
    assert plot(tmp_path / "a.json", "--out", tmp_path).stdout.split() == [
        str(tmp_path / "allreduce-payload.png")
    ]


def test_a_picture_replaces_the_one_before_and_names_are_no_mathematics(tmp_path):
    (tmp_path / "allreduce-payload.png").write_text("old")
    record = (
        allreduces(result("mesh", testbed="$_{$")) | decodes(setting(2), setting(4)) | {"model": r"a$\b$"}
    )
    (tmp_path / "both.json").write_text(json.dumps(record))
    assert plot(tmp_path / "both.json", "--out", tmp_path).returncode == 0
    for name in ("allreduce-payload.png", "allreduce-latency.png", "decode.png"):
        assert size_of(tmp_path / name)[0] == 780


def test_networks_and_wires_are_told_apart():
    rows = [result("mesh"), result("mesh", wire="bf16"), result("mesh", testbed=None, latency_s=None)]
    assert [one.network for one in read_allreduces(allreduces(*rows), "a")] == [
        "paper-8, 1 ms, 300 Mbit/s",
        "paper-8, 1 ms, 300 Mbit/s, bf16 on the wire",
        "loopback, 300 Mbit/s",
    ]


@pytest.mark.parametrize(
    ("collective", "of_two", "of_eight"),
    [("star", 2, 2), ("mesh", 1, 1), ("two-shot", 2, 2), ("tree", 2, 4), ("ring", 2, 14)],
)
def test_what_no_all_reduce_can_be_faster_than(collective, of_two, of_eight):
    assert (latencies(collective, 2), latencies(collective, 8)) == (of_two, of_eight)


def test_each_sweep_holds_all_else_fixed():
    rows = decodes(
        setting(4),
        setting(4, threads=2),
        setting(4, bytes_per_s=125e6),
        setting(4, latency_s=0.005),
        setting(4, latency_s=0.003),
        setting(8),
        setting(8, collective="star"),
        ALONE,
    )
    found = read_decodes(rows, "d")
    seen = {}
    for axis in AXES:
        shared, series = series_along(axis, found)
        seen[axis.field] = (
            shared,
            {name: [axis.value(one) for one in group] for name, group in series.items()},
        )
    assert seen == {
        "nodes": ("tinyllama, 1 core, 300 Mbit/s, 1 ms, mesh, f32 on the wire", {"": [1, 4, 8]}),
        "threads": ("tinyllama, 4 devices, 300 Mbit/s, 1 ms, mesh, f32 on the wire", {"": [1, 2]}),
        "bytes_per_s": (
            "tinyllama, 4 devices, 1 core, 1 ms, mesh, f32 on the wire",
            {"": [pytest.approx(300), 1000]},
        ),
        "latency_s": ("tinyllama, 4 devices, 1 core, 300 Mbit/s, mesh, f32 on the wire", {"": [1, 3, 5]}),
    }


def test_series_are_named_by_what_sets_them_apart():
    rows = decodes(*(setting(nodes, collective=name) for name in ("star", "mesh") for nodes in (2, 4)), ALONE)
    shared, series = series_along(DEVICES, read_decodes(rows, "d"))
    assert shared == "tinyllama, 1 core, 300 Mbit/s, 1 ms, f32 on the wire"
    assert {name: [one.nodes for one in group] for name, group in series.items()} == {
        "star": [1, 2, 4],
        "mesh": [1, 2, 4],
    }


def test_links_without_a_limit_are_named():
    rows = decodes(*(setting(nodes, bytes_per_s=rate) for nodes in (2, 4) for rate in (37.5e6, None)))
    _, series = series_along(DEVICES, read_decodes(rows, "d"))
    assert set(series) == {"300 Mbit/s", "no limit"}


def test_one_device_has_no_links():
    rows = decodes(setting(1), setting(1, latency_s=0.005), setting(2), setting(2, latency_s=0.005))
    shared, series = series_along(LATENCY, read_decodes(rows, "d"))
    assert shared == "tinyllama, 2 devices, 1 core, 300 Mbit/s, mesh, f32 on the wire"
    assert [[one.latency_s for one in group] for group in series.values()] == [[0.001, 0.005]]


def test_wires_and_precisions_are_named():
    rows = decodes(setting(2), setting(4), setting(2, wire="int8"), setting(4, wire="int8")) | {
        "precision": "bf16"
    }
    shared, series = series_along(DEVICES, read_decodes(rows, "d"))
    assert shared == "tinyllama, bf16, 1 core, 300 Mbit/s, 1 ms, mesh"
    assert list(series) == ["f32 on the wire", "int8 on the wire"]


def test_testbeds_are_told_apart_and_models_lose_their_folder():
    records = [
        decodes(setting(2), setting(4)) | {"model": "somewhere/shape", "testbed": name}
        for name in ("pair", "weak-8")
    ]
    shared, series = series_along(DEVICES, [one for record in records for one in read_decodes(record, "d")])
    assert [name.split(", ")[0] for name in series] == ["shape"] * 2
    assert [len(group) for group in series.values()] == [2, 2]
    assert "pair" not in shared
    assert {"pair" in name for name in series} == {True, False}


def test_one_device_and_one_cluster_are_a_sweep():
    _, series = series_along(DEVICES, read_decodes(decodes(ALONE, setting(2)), "d"))
    assert [[one.nodes for one in group] for group in series.values()] == [[1, 2]]
    assert series_along(DEVICES, read_decodes(decodes(ALONE, ALONE), "d"))[1] == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("\0\xff", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "has neither results nor settings"),
        ('{"results": []}', "has no results"),
        ('{"results": [5]}', "result 1 of f.json cannot be read"),
        ('{"settings": {}}', "has no settings"),
        ('{"settings": {"2x1": {"nodes": 2}}}', "setting '2x1' of f.json lacks 'threads'"),
        (json.dumps(allreduces(result("mesh"), {"nodes": 2})), "result 2 of f.json lacks 'collective'"),
        (json.dumps(allreduces(result("gossip"))), "no collective is called 'gossip'"),
        (json.dumps(allreduces(result("mesh", nodes=True))), "True is no number of things"),
        (json.dumps(allreduces(result("mesh", latency_s=float("nan")))), "nan is no amount"),
        (json.dumps(allreduces(result("mesh", seconds=spread(0)))), "0 is not between 0 and 0"),
        (json.dumps(allreduces(result("mesh", seconds=[1]))), "cannot be read"),
    ],
)
def test_what_is_no_record_of_a_benchmark(tmp_path, text, words):
    path = tmp_path / "f.json"
    path.write_text(text, "latin-1")
    with pytest.raises(UserError) as caught:
        load(path)
    assert words in str(caught.value)
    assert "printed with --json" in str(caught.value)


def test_the_tool_ends_with_one_line_and_status_2(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "one.json").write_text(json.dumps(decodes(setting())))
    calls = {
        "bad.json is not JSON": (tmp_path / "bad.json",),
        "no.json: No such file": (tmp_path / "no.json",),
        "nothing to draw": (tmp_path / "one.json", "--out", tmp_path),
        "there is no folder": (tmp_path / "one.json", "--out", tmp_path / "no"),
    }
    for words, arguments in calls.items():
        ended = plot(*arguments)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.count("\n") == 1
        assert words in ended.stderr


def test_a_missing_matplotlib_is_named(tmp_path):
    (tmp_path / "d.json").write_text(json.dumps(decodes(setting(2), setting(4))))
    script = (
        "import sys; sys.modules['matplotlib'] = None; sys.path.insert(0, sys.argv[1]);"
        "from plot_network import main; sys.exit(main([sys.argv[2]]))"
    )
    command = [sys.executable, "-c", script, str(TOOL.parent), str(tmp_path / "d.json")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stderr) == (
        2,
        "error: drawing needs matplotlib: pip install 'tpiedge[plot]'\n",
    )
