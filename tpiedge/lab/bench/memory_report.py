"""What the steady-state analysis says of a measured setting (tpiedge.lab.steady_state)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from tpiedge.lab.bench.figures import spread
from tpiedge.lab.bench.memory_runs import Budget, NodeSample, Sample
from tpiedge.lab.steady_state import (
    Sides,
    Streaming,
    steady_placement,
    streaming,
)
from tpiedge.local.prepare import PreparedModel
from tpiedge.memory.pinning import Placement
from tpiedge.memory.sweep import Block, Sweep


def steady_record(
    held: Sequence[tuple[Sweep, Placement]], samples: Sequence[Sample], disk_bytes_per_s: float
) -> list[dict[str, Any]]:
    """The record of each node.

    They share the disk in proportion to what they stream, and one that read faster than that, while it read, is
    believed. An all-reduce that waits for another node's reads counts as time to read in.
    """
    streamed = [sweep.nbytes - _pinned_bytes(sweep, placement) for sweep, placement in held]
    total = sum(streamed)
    return [
        _steady_node(
            sweep, placement, samples, rank, disk_bytes_per_s * (own / total if own else 1 / len(held))
        )
        for rank, ((sweep, placement), own) in enumerate(zip(held, streamed, strict=True))
    ]


def _steady_node(
    sweep: Sweep, placement: Placement, samples: Sequence[Sample], rank: int, disk_bytes_per_s: float
) -> dict[str, Any]:
    work_s = _work(sweep, samples, rank)
    disk_bytes_per_s = max(disk_bytes_per_s, _own_bytes_per_s(samples, rank))
    node = streaming(sweep.sizes, work_s, placement, disk_bytes_per_s)
    measured_s = median(sample.nodes[rank].stall_s for sample in samples)
    load_s = median(sample.nodes[rank].load_s for sample in samples)
    return {
        "rank": rank,
        "blocks": len(sweep.blocks),
        "weights_bytes": sweep.nbytes,
        "pinned_bytes": _pinned_bytes(sweep, placement),
        "ring_bytes": placement.ring_bytes,
        "disk_bytes_per_s": disk_bytes_per_s,
        "sweep": _sides(node.sweep),
        "stretch": _sides(node.stretch),
        "loose": node.loose,
        "tight": _sides(node.tight),
        "predicted_stall_s_per_token": node.stall_s,
        "measured_stall_s_per_token": measured_s,
        "predicted_stall_s_per_block": node.stall_s / len(sweep.blocks),
        "measured_stall_s_per_block": measured_s / len(sweep.blocks),
        "predicted_hidden": node.hidden,
        "measured_hidden": max(0.0, 1 - measured_s / load_s) if load_s else 1.0,
        "steady": _steady(sweep, work_s, node),
    }


def _own_bytes_per_s(samples: Sequence[Sample], rank: int) -> float:
    """While at least one read was under way: less than the disk can do where the node had no room for more."""
    nodes = [sample.nodes[rank] for sample in samples]
    return median(node.streamed_bytes / node.load_s if node.load_s else 0.0 for node in nodes)


def _work(sweep: Sweep, samples: Sequence[Sample], rank: int) -> list[float]:
    """Seconds of each block with its all-reduce, without waiting for weights. What a token takes beside the layers is
    the head's, or comes after the last block where there is none."""
    layers = len(sweep.blocks) - len(sweep.head_tiles)
    attention_s, ffn_s, reduce_s = (
        median(getattr(sample.nodes[rank], name) for sample in samples)
        for name in ("attention_s", "ffn_s", "reduce_s")
    )
    rest_s = median(_rest(sample.s_per_token, sample.nodes[rank]) for sample in samples)
    kinds = {"attention": attention_s, "ffn": ffn_s}
    work_s = [
        (2 * kinds[block.kind] + reduce_s) / layers if isinstance(block, Block) else 0.0
        for block in sweep.blocks
    ]
    last = len(sweep.head_tiles) or 1
    return [*work_s[:-last], *(own_s + rest_s / last for own_s in work_s[-last:])]


def _rest(s_per_token: float, node: NodeSample) -> float:
    return max(0.0, s_per_token - node.attention_s - node.ffn_s - node.reduce_s - node.stall_s)


def _steady(sweep: Sweep, work_s: Sequence[float], node: Streaming) -> dict[str, Any]:
    """The least memory for weights that would reach the steady state at this speed of the disk."""
    found = steady_placement(sweep.sizes, work_s, node.disk_bytes_per_s)
    pinned = _pinned_bytes(sweep, found)
    return {
        "weight_bytes": found.ring_bytes + pinned,
        "pinned_bytes": pinned,
        "pinned_share": pinned / sweep.nbytes if sweep.nbytes else 0.0,
    }


def _pinned_bytes(sweep: Sweep, placement: Placement) -> int:
    return placement.pinned_bytes([piece.nbytes for piece in sweep.pieces])


def _sides(sides: Sides) -> dict[str, Any]:
    return {"work_s": sides.work_s, "load_s": sides.load_s, "holds": sides.holds}


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
