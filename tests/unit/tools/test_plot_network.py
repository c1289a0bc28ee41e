"""The pictures of network benchmarks: really drawn, from records as the benchmarks print them."""

import json
import struct
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tools.network_plots.records import load, read_decodes
from tools.network_plots.sweeps import AXES, series_along
from tpiedge.errors import UserError

TOOL = Path(__file__).parents[3] / "tools" / "plot_network.py"


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
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:])


def test_one_file_of_each_kind_gives_three_plots(tmp_path):
    rows = [
        result(collective, latency_s=ms / 1e3, nodes=nodes, bytes=nbytes)
        for collective, ms, nodes, nbytes in product(("star", "mesh", "two-shot"), (1, 5), (2, 8), (4, 32768))
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


def test_each_plotted_sweep_varies_one_parameter():
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "has neither results nor settings"),
        ('{"results": [5]}', "result 1 of f.json cannot be read"),
        ('{"settings": {"2x1": {"nodes": 2}}}', "setting '2x1' of f.json lacks 'threads'"),
        (json.dumps(allreduces(result("mesh"), {"nodes": 2})), "result 2 of f.json lacks 'collective'"),
        (json.dumps(allreduces(result("gossip"))), "no collective is called 'gossip'"),
        (json.dumps(allreduces(result("mesh", seconds=spread(0)))), "0 is not between 0 and 0"),
    ],
)
def test_malformed_benchmark_record_is_refused(tmp_path, text, words):
    path = tmp_path / "f.json"
    path.write_text(text, "latin-1")
    with pytest.raises(UserError) as caught:
        load(path)
    assert words in str(caught.value)
    assert "printed with --json" in str(caught.value)
