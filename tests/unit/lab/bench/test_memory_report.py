"""From runs to figures, by hand."""

from dataclasses import replace
from typing import Any, cast

import pytest

from tpiedge.lab.bench.memory_report import GroupPeak, SettingRun, report
from tpiedge.lab.bench.memory_runs import Budget, NodeSample, Sample
from tpiedge.lab.verbs.bench_memory import print_report
from tpiedge.local.launch import Layout
from tpiedge.local.prepare import PreparedModel

MODEL = cast(PreparedModel, None)


class _Setting:
    """A budget that nothing is held with."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.name, self.nbytes, self.layout = name, nbytes, Layout(1, None, 1, nbytes)

    def held(self, _model: PreparedModel) -> list[object]:
        return []


def setting(name: str, nbytes: int) -> Budget:
    return cast(Budget, _Setting(name, nbytes))


def sample(s_per_token: float, streamed: float = 0.0, stall_s: float = 0.0) -> Sample:
    return Sample(s_per_token, (node(streamed, stall_s),))


def node(streamed: float, stall_s: float) -> NodeSample:
    return NodeSample(
        streamed_bytes=streamed,
        reads=4.0 if streamed else 0.0,
        prefetch_hits=3.0,
        stalls=1.0,
        stall_s=stall_s,
        load_s=0.5,
        attention_s=0.1,
        ffn_s=0.1,
        reduce_s=0.0,
        head_s=0.1,
        peak_rss_bytes=1000,
        weight_bytes=10,
    )


def run(found: Sample, rate: float = 100.0) -> SettingRun:
    return SettingRun(found, disk=(rate, rate))


def figures(**runs: list[SettingRun]) -> dict[str, Any]:
    found = [setting(name, size) for size, name in enumerate(runs, 1)]
    return report(MODEL, found, runs)


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
    assert found["rises"] == []


def test_a_disk_that_changes_counts_with_its_mean() -> None:
    found = figures(window=[SettingRun(sample(2.0, 200), disk=(50.0, 150.0))], all=[run(sample(0.5))])
    assert found["settings"]["window"]["bound_s_per_token"]["median"] == 2.0
    assert found["settings"]["window"]["disk_samples_bytes_per_s"] == [(50.0, 150.0)]


def test_where_nothing_fits_computing_is_what_is_left_without_waits() -> None:
    found = figures(window=[run(sample(2.5, 200, stall_s=1.75))], more=[run(sample(2.0, 150, stall_s=1.0))])
    assert (found["compute_s_per_token"], found["compute_from"]) == (0.75, "streaming without waits")


def test_of_several_nodes_the_longest_wait_is_left_out() -> None:
    """Rank 0 waits 0.5 s for its weights and 1 s for the other node, in an all-reduce."""
    two = Sample(2.0, (node(200, 0.5), node(200, 1.5)))
    assert figures(window=[run(two)])["compute_s_per_token"] == 0.5


def test_one_lucky_run_does_not_decide_how_fast_computing_is() -> None:
    waits = (1.0, 1.25, 1.75)
    found = figures(window=[run(sample(2.0, 200, stall_s=stall_s)) for stall_s in waits])
    assert found["compute_s_per_token"] == 0.75


def test_a_disk_that_was_read_through_the_page_cache_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    cached = replace(run(sample(0.5)), disk_is_direct=False)
    for runs, expected in (([run(sample(0.5))] * 2, True), ([run(sample(0.5)), cached], False)):
        found = figures(all=runs)
        assert found["disk_is_direct"] is expected
        print_report({**found, "settings": {}, "smallest_budget_bytes": 400})
        assert ("refuses direct reads" not in capsys.readouterr().out) is expected


def test_more_memory_that_is_slower_is_said() -> None:
    found = figures(a=[run(sample(2.0, 200))], b=[run(sample(2.5, 100))], c=[run(sample(0.5))])
    assert found["rises"] == [["a", "b"]]


def test_a_setting_that_failed_is_told_and_the_others_stay(capsys: pytest.CaptureFixture[str]) -> None:
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
