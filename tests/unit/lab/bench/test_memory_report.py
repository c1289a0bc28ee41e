from typing import Any, cast

import pytest

from tpiedge.lab.bench.memory_runs import Budget, GroupPeak, Sample, SettingRun, report
from tpiedge.lab.verbs.bench_memory import print_report
from tpiedge.local.layout import Layout
from tpiedge.local.prepare import PreparedModel

MODEL = cast(PreparedModel, None)


class _Setting:
    def __init__(self, name: str, nbytes: int) -> None:
        self.name, self.nbytes, self.layout = name, nbytes, Layout(1, None, 1, nbytes)

    def held(self, _model: PreparedModel) -> list[object]:
        return []


def setting(name: str, nbytes: int) -> Budget:
    return cast(Budget, _Setting(name, nbytes))


def sample(s_per_token: float, streamed: float = 0.0, stall_s: float = 0.0) -> Sample:
    node = {"streamed_bytes": streamed, "reads": 4.0 * (streamed > 0), "stall_s": stall_s, "load_s": 0.5}
    return Sample(s_per_token, (node,))


def run(found: Sample, rate: float = 100.0) -> SettingRun:
    return SettingRun(found, disk=(rate, rate))


def figures(**runs: list[SettingRun]) -> dict[str, Any]:
    found = [setting(name, size) for size, name in enumerate(runs, 1)]
    return report(found, runs)


def test_the_bound_is_the_slower_of_disk_and_processor() -> None:
    """200 bytes at 100 per second take 2 s, 20 bytes 0.2 s; computing takes 0.5 s."""
    found = figures(
        little=[run(sample(2.5, 200)), run(sample(4.0, 200))],
        much=[run(sample(1.0, 20))],
        all=[run(sample(0.5))],
    )
    assert (found["compute_s_per_token"], found["compute_from"]) == (0.5, "all in memory")
    little, much = found["settings"]["little"], found["settings"]["much"]
    assert little["bound_s_per_token"]["median"] == 2.0
    assert little["bound_reached"] == pytest.approx({"median": 0.65, "min": 0.5, "max": 0.8})
    assert much["bound_s_per_token"]["median"] == 0.5
    assert much["bound_reached"]["median"] == 0.5
    assert found["settings"]["all"]["bound_reached"]["median"] == 1.0


def test_compute_time_without_full_memory_excludes_stalls() -> None:
    found = figures(window=[run(sample(2.5, 200, stall_s=1.75))], more=[run(sample(2.0, 150, stall_s=1.0))])
    assert (found["compute_s_per_token"], found["compute_from"]) == (0.75, "streaming without waits")


def test_failed_setting_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    killed = SettingRun(
        None, "status 4: tpiedge: node 0 ran out of memory", GroupPeak(400, 400, 1), (100.0, 100.0)
    )
    found = figures(min=[killed, killed])
    record = found["settings"]["min"]
    assert found["compute_s_per_token"] is None
    assert record["cgroup"] == {"limit_bytes": 400, "peak_bytes": 400, "part": 1.0, "oom_kills": 2}
    assert len(record["failures"]) == 2
    assert "s_per_token" not in record
    print_report({**found, "smallest_budget_bytes": 400})
    out = capsys.readouterr().out
    assert "min failed: status 4: tpiedge: node 0 ran out of memory" in out
    assert "2 processes killed for memory" in out
