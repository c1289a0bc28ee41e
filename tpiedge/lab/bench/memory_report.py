"""From the runs of `tpiedge bench memory` to its figures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from tpiedge.lab.bench.budgets import Budget
from tpiedge.lab.bench.figures import spread
from tpiedge.lab.bench.steady import paper_window_bytes, steady_record
from tpiedge.lab.bench.streaming import Sample
from tpiedge.local.prepare import PreparedModel

_TARGET = 0.85


@dataclass(frozen=True)
class GroupPeak:
    """The limit of a run's control group and the most that it used, page cache included."""

    limit_bytes: int
    peak_bytes: int
    oom_kills: int


@dataclass(frozen=True)
class SettingRun:
    """One run of a setting: what it measured, or why it failed; the disk's rate before and after it, and whether that
    was measured past the page cache."""

    sample: Sample | None
    failure: str = ""
    group: GroupPeak | None = None
    disk: tuple[float, float] = (0.0, 0.0)
    disk_is_direct: bool = True

    @property
    def disk_bytes_per_s(self) -> float:
        return fmean(self.disk)


def report(
    model: PreparedModel, found: Sequence[Budget], runs: Mapping[str, Sequence[SettingRun]]
) -> dict[str, Any]:
    """The part of the record that comes from measuring. `runs` may hold one more setting, to compare with."""
    compute_s, source = _compute(runs)
    settings = {budget.name: _setting(model, budget, runs[budget.name], compute_s) for budget in found}
    return {
        "compute_s_per_token": compute_s,
        "compute_from": source,
        "disk_is_direct": all(run.disk_is_direct for of_setting in runs.values() for run in of_setting),
        "target": _TARGET,
        "paper_window_bytes": [paper_window_bytes(model.pack, sweep) for sweep, _ in found[0].held(model)],
        "settings": settings,
        "rises": _rises(settings),
    }


def _compute(runs: Mapping[str, Sequence[SettingRun]]) -> tuple[float | None, str]:
    """Seconds per token with everything in memory, or else of the setting that computes fastest, its waits for weights
    left out."""
    settings = [[run.sample for run in of_setting if run.sample is not None] for of_setting in runs.values()]
    samples = [sample for of_setting in settings for sample in of_setting]
    if not samples:
        return None, "no run"
    resident = [sample.s_per_token for sample in samples if not _streams(sample)]
    if resident:
        return median(resident), "all in memory"
    return min(median(map(_unstalled, found)) for found in settings if found), "streaming without waits"


def _unstalled(sample: Sample) -> float:
    """Seconds per token without the waits of the node that waits longest, for which the others wait as they reduce."""
    return sample.s_per_token - max(node.stall_s for node in sample.nodes)


def _streams(sample: Sample) -> bool:
    return any(node.reads for node in sample.nodes)


def _setting(
    model: PreparedModel, budget: Budget, runs: Sequence[SettingRun], compute_s: float | None
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "budget_bytes": budget.nbytes,
        "memory_limit": budget.layout.memory_bytes,
        "pin": budget.layout.keeping.pin,
        "disk_bytes_per_s": spread([run.disk_bytes_per_s for run in runs]),
        "disk_samples_bytes_per_s": [run.disk for run in runs],
        "failures": [run.failure for run in runs if run.failure],
    }
    groups = [run.group for run in runs if run.group is not None]
    if groups:
        record["cgroup"] = _group(groups)
    done = [(run.sample, run.disk_bytes_per_s) for run in runs if run.sample is not None]
    if not done or compute_s is None:
        return record
    samples = [sample for sample, _ in done]
    bounds = [max(sample.streamed_bytes / rate, compute_s) for sample, rate in done]
    return record | {
        "s_per_token": spread([sample.s_per_token for sample in samples]),
        "streamed_bytes_per_token": median(sample.streamed_bytes for sample in samples),
        "bound_s_per_token": spread(bounds),
        "bound_reached": spread(
            [bound / sample.s_per_token for sample, bound in zip(samples, bounds, strict=True)]
        ),
        "disk_busy": spread([_busy(sample) for sample in samples]),
        "nodes": [_node(samples, rank) for rank in range(len(samples[0].nodes))],
        "steady": steady_record(budget.held(model), samples, fmean(rate for _, rate in done)),
    }


def _busy(sample: Sample) -> float:
    """The part of the time in which the node that reads most had a read under way: near 1 where the disk decides."""
    return min(1.0, max(node.load_s for node in sample.nodes) / sample.s_per_token)


def _node(samples: Sequence[Sample], rank: int) -> dict[str, float]:
    """The medians of a node's figures."""
    nodes = [asdict(sample.nodes[rank]) for sample in samples]
    return {name: median(node[name] for node in nodes) for name in nodes[0]}


def _group(groups: Sequence[GroupPeak]) -> dict[str, Any]:
    limit_bytes = groups[0].limit_bytes
    peak_bytes = max(group.peak_bytes for group in groups)
    return {
        "limit_bytes": limit_bytes,
        "peak_bytes": peak_bytes,
        "part": peak_bytes / limit_bytes,
        "oom_kills": sum(group.oom_kills for group in groups),
    }


def _rises(settings: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Pairs of settings of which the one with more memory is the slower one."""
    times = [
        (name, found["s_per_token"]["median"]) for name, found in settings.items() if "s_per_token" in found
    ]
    return [
        [smaller, larger] for (smaller, before_s), (larger, after_s) in pairwise(times) if after_s > before_s
    ]
