"""Measurements are believed for a week, by the same machine, and only where they make sense."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpiedge.launch.measurements import Measurements, disk_bytes_per_s
from tpiedge.launch.readiness import NodeReport
from tpiedge.wire.epochs import Capacity

DAY_S = 86400.0
NOW = 1e9
REPORT = NodeReport(42, "cpu", "avx2", Capacity(2, 1e9, 2e9))


def recall(folder: Path, threads: int = 2, now: float = NOW) -> NodeReport | None:
    return Measurements(folder, threads, lambda: now).recall()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    Measurements(tmp_path, 2, lambda: NOW).keep(REPORT)
    return tmp_path


def test_nothing_is_known_at_first(tmp_path: Path) -> None:
    assert recall(tmp_path) is None


def test_a_report_comes_back_without_the_process_that_made_it(kept: Path) -> None:
    assert recall(kept) == NodeReport(0, "cpu", "avx2", REPORT.capacity)


@pytest.mark.parametrize(
    ("threads", "age_s", "known"),
    [(2, 0.0, True), (2, 7 * DAY_S, True), (2, 7 * DAY_S + 1, False), (2, -1.0, False), (4, 0.0, False)],
)
def test_how_long_and_for_whom(kept: Path, threads: int, age_s: float, known: bool) -> None:
    assert (recall(kept, threads, NOW + age_s) is not None) == known


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: values.clear(),
        lambda values: values.update(when="now"),
        lambda values: values.update(when=float("nan")),
        lambda values: values.update(report=[1]),
        lambda values: values["conditions"].update(cpu="another"),
        lambda values: values["conditions"].update(version="0"),
        lambda values: values["conditions"].update(kernels="another"),
        lambda values: values["report"].update(capacity=None),
        lambda values: values["report"].update(cpu=5),
        lambda values: values["report"].update(more=5),
        lambda values: values["report"]["capacity"].update(weight_bytes_per_s="fast"),
        lambda values: values["report"]["capacity"].update(weight_bytes_per_s=float("nan")),
        lambda values: values["report"]["capacity"].update(weight_bytes_per_s=-1.0),
        lambda values: values["report"]["capacity"].update(weight_bytes_per_s=0.5),
        # As a version wrote it that knew one figure for all weights.
        lambda values: values["report"]["capacity"].pop("panel_bytes_per_s"),
        lambda values: values["report"]["capacity"].update(threads=2.5),
        lambda values: values["report"]["capacity"].pop("threads"),
    ],
)
def test_what_makes_no_sense_is_measured_anew(kept: Path, damage: Callable[[dict[str, Any]], object]) -> None:
    (path,) = kept.iterdir()
    values = json.loads(path.read_text())
    damage(values)
    path.write_text(json.dumps(values))
    assert recall(kept) is None


@pytest.mark.parametrize("content", ["", "not json", "[]", "null"])
def test_a_damaged_file_is_measured_anew(kept: Path, content: str) -> None:
    (path,) = kept.iterdir()
    path.write_text(content)
    assert recall(kept) is None
    Measurements(kept, 2, lambda: NOW).keep(REPORT)
    assert recall(kept) is not None


def test_a_disk_that_takes_nothing_costs_a_measurement_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    Measurements(blocked, 2, lambda: NOW).keep(REPORT)
    assert recall(blocked) is None


def test_a_disk_is_measured_once_a_week(tmp_path: Path) -> None:
    disk, other = tmp_path / "disk", tmp_path / "other"
    disk.mkdir()
    other.mkdir()
    first = disk_bytes_per_s(tmp_path, disk, lambda: NOW)
    assert first > 0
    known = json.loads((tmp_path / "disk.json").read_text())
    (tmp_path / "disk.json").write_text(json.dumps(known | {"bytes_per_s": 123.0}))
    assert disk_bytes_per_s(tmp_path, disk, lambda: NOW + 7 * DAY_S) == 123.0
    assert disk_bytes_per_s(tmp_path, disk, lambda: NOW + 7 * DAY_S + 1) != 123.0
    (tmp_path / "disk.json").write_text(json.dumps(known | {"bytes_per_s": 123.0}))
    assert disk_bytes_per_s(tmp_path, other, lambda: NOW) != 123.0


@pytest.mark.parametrize("damage", ["{}", "no json", '{"folder": 3, "when": "x", "bytes_per_s": -1}', "slow"])
def test_a_damaged_figure_is_measured_anew(tmp_path: Path, damage: str) -> None:
    slow = json.dumps({"folder": str(tmp_path), "when": NOW, "bytes_per_s": 0.5})
    (tmp_path / "disk.json").write_text(slow if damage == "slow" else damage)
    assert disk_bytes_per_s(tmp_path, tmp_path, lambda: NOW) > 1


def test_a_folder_that_takes_nothing_has_no_figure(tmp_path: Path) -> None:
    assert disk_bytes_per_s(tmp_path, tmp_path / "missing", lambda: NOW) == 0.0
