import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpiedge.launch.bootstrap import NodeReport
from tpiedge.launch.offer import Measurements, MemoryOffer, disk_bytes_per_s
from tpiedge.wire.epochs import Capacity

WEEK_S = 7 * 86400.0
NOW = 1e9
REPORT = NodeReport("avx2", Capacity(1e9, 2e9))
GB = 10**9


def recall(folder: Path, threads: int = 2, now: float = NOW) -> NodeReport | None:
    return Measurements(folder, threads, lambda: now).recall()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    assert recall(tmp_path) is None
    Measurements(tmp_path, 2, lambda: NOW).keep(REPORT)
    return tmp_path


@pytest.mark.parametrize(
    ("threads", "age_s", "known"),
    [(2, 0.0, True), (2, WEEK_S, True), (2, WEEK_S + 1, False), (2, -1.0, False), (4, 0.0, False)],
)
def test_node_report_is_cached_for_a_week(kept, threads, age_s, known):
    found = recall(kept, threads, NOW + age_s)
    assert found == (REPORT if known else None)


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: values.clear(),
        lambda values: values.update(when="now"),
        lambda values: values.update(report=[1]),
        lambda values: values["conditions"].update(cpu="another"),
        lambda values: values["conditions"].update(version="0"),
        lambda values: values["conditions"].update(kernels="another"),
        lambda values: values["report"]["capacity"].pop("panel_bytes_per_s"),
        lambda values: values["report"].update({"\ud800": 1}),
    ],
)
def test_invalid_or_mismatched_report_is_discarded(
    kept: Path, damage: Callable[[dict[str, Any]], object]
) -> None:
    (path,) = kept.iterdir()
    values = json.loads(path.read_text())
    damage(values)
    path.write_text(json.dumps(values))
    assert recall(kept) is None


def test_unwritable_cache_only_loses_the_measurement(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    Measurements(blocked, 2, lambda: NOW).keep(REPORT)
    assert recall(blocked) is None
    assert disk_bytes_per_s(tmp_path, tmp_path / "missing", lambda: NOW) == 0.0


def test_a_disk_is_measured_once_a_week(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    assert disk_bytes_per_s(tmp_path, disk, lambda: NOW) > 0
    path = tmp_path / "disk.json"
    known = json.loads(path.read_text()) | {"bytes_per_s": 123.0}
    path.write_text(json.dumps(known))
    assert disk_bytes_per_s(tmp_path, disk, lambda: NOW + WEEK_S) == 123.0
    for values, now in ((known, NOW + WEEK_S + 1), (known | {"folder": "/"}, NOW), ({}, NOW)):
        path.write_text(json.dumps(values))
        assert disk_bytes_per_s(tmp_path, disk, lambda now=now: now) != 123.0  # type: ignore[misc]


LOOK, END, INSIST = MemoryOffer.look, MemoryOffer.ran_out, MemoryOffer.insist


@pytest.mark.parametrize(
    "story",
    [
        [(LOOK, 3.9, 0, 4.0), (LOOK, 3.85, 2, 4.0)],  # a few per cent lead to no new plan
        [(LOOK, 2.0, 0, 2.0), (LOOK, 1.0, 2, 1.0)],  # less is offered at once
        # More once settled.
        [(LOOK, 2.0, 0, 2.0), (LOOK, 4.0, 2, 2.0), (LOOK, 4.0, 11, 2.0), (LOOK, 4.0, 12, 4.0)],
        [
            *((LOOK, 2.0, 0, 2.0), (LOOK, 4.0, 2, 2.0), (LOOK, 2.0, 4, 2.0)),
            *((LOOK, 4.0, 6, 2.0), (LOOK, 4.0, 14, 2.0)),
        ],
        [(LOOK, 6.0, 0, 4.0), (LOOK, 6.0, 10, 6.0)],  # more than at first
        # A node runs out: less of what it was planned with, until the time is over, and the second time for longer.
        [(END, (2.0, 4.0), 0, 1.5), (LOOK, 4.0, 59, 1.5), (LOOK, 4.0, 60, 1.5), (LOOK, 4.0, 70, 4.0)],
        [(END, (4.0, 4.0), 0, 3.0), (END, (2.0, 4.0), 5, 1.5), (LOOK, 4.0, 70, 1.5), (LOOK, 4.0, 244, 1.5)],
        [(END, (0, 4.0), 0, 3.0)],  # a plan that does not say what it gives
        # A lowered limit explains an end, and so does a plan from before the last one.
        [(END, (4.0, 3.9), 0, 3.9), (LOOK, 2.0, 1, 2.0), (END, (3.0, 2.0), 2, 2.0)],
        [(END, (4.0, 4.0), 0, 3.0), (END, (4.0, 4.0), 1, 3.0), (LOOK, 4.0, 60, 3.0), (LOOK, 4.0, 70, 4.0)],
        # A limit that rises ends the time of less, if not for a moment only.
        [(END, (4.0, 4.0), 0, 3.0), (LOOK, 8.0, 1, 3.0), (LOOK, 8.0, 11, 8.0)],
        [(END, (4.0, 4.0), 0, 3.0), (LOOK, 8.0, 2, 3.0), (LOOK, 4.0, 4, 3.0), (LOOK, 4.0, 24, 3.0)],
        # Both bound it.
        [(END, (4.0, 4.0), 0, 3.0), (LOOK, 2.0, 1, 2.0), (LOOK, 4.0, 2, 2.0), (LOOK, 4.0, 12, 3.0)],
        # Nothing can be done with so little.
        [(END, (4.0, 4.0), 0, 3.0), (INSIST, 4.0, 1, 4.0), (END, (4.0, 4.0), 2, 3.0)],
    ],
)
def test_offered_memory_follows_limits_and_out_of_memory(story: list[tuple[Any, Any, float, float]]) -> None:
    memory = MemoryOffer(4 * GB)
    for call, given, now, offered in story:
        before = memory.offered_bytes
        numbers = given if isinstance(given, tuple) else (given,)
        line = call(memory, *(int(number * GB) for number in numbers), float(now))
        assert memory.offered_bytes == offered * GB
        assert bool(line) >= (memory.offered_bytes != before), "a change is said"
        assert memory.reduced == (offered < 4.0)
