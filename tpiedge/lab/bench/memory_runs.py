"""Runs the settings of `tpiedge bench memory` and reports all runs."""

import mmap
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tpiedge.errors import OutOfMemory, PeerLost, UserError
from tpiedge.host.disk_speed import DiskSpeed
from tpiedge.lab.bench.figures import ask, spread
from tpiedge.lab.memory_group import ENTER, memory_group
from tpiedge.launch.child import Place
from tpiedge.local.cluster import launch
from tpiedge.local.layout import Layout, plan_cluster
from tpiedge.local.prepare import PreparedModel
from tpiedge.memory.reader import DirectFile, DirectReader
from tpiedge.memory.sweep import Placement, Sweep, placed
from tpiedge.pack.reader import Pack
from tpiedge.planner.solve import Plan
from tpiedge.units import MIB, parse_bytes
from tpiedge.wire.control import Stats
from tpiedge.wire.fields import Keeping


@dataclass(frozen=True)
class Budget:
    name: str
    layout: Layout
    plan: Plan

    @property
    def nbytes(self) -> int:
        if self.layout.memory_bytes is not None:
            return self.layout.memory_bytes
        return max(need.total_bytes for need in self.plan.needs)

    def held(self, model: PreparedModel) -> list[tuple[Sweep, Placement]]:
        """Returns each node's blocks in the order of use (a sweep), and the placement of their weights."""
        sweeps = [Sweep.of(model.pack, share, rank == 0) for rank, share in enumerate(self.plan.shares)]
        pairs = zip(sweeps, self.plan.needs, strict=True)
        return [(sweep, placed(need.weights, sweep)) for sweep, need in pairs]

    def streams(self, model: PreparedModel) -> bool:
        return any(len(placement.pinned) < len(sweep.pieces) for sweep, placement in self.held(model))


def budgets(text: str, model: PreparedModel, layout: Layout, capacity: int) -> list[Budget]:
    """Returns the budgets in `text` ('min,40%,700MB'), smallest first. Raises UserError, OutOfMemory."""
    names = dict.fromkeys(item.strip().lower() for item in text.split(","))
    found = [_budget(name, model, layout, capacity) for name in names]
    return sorted(found, key=lambda budget: budget.nbytes)


def whole(model: PreparedModel, layout: Layout, capacity: int) -> Budget:
    """Plans a budget with all weights in memory. Raises OutOfMemory."""
    return _planned("all", model, replace(layout, keeping=Keeping(pin="all")), capacity)


def smallest_budget(model: PreparedModel, layout: Layout, capacity: int) -> int:
    """Returns the fewest bytes per node, in whole MiB, with which a plan exists."""

    def works(nbytes: int) -> bool:
        try:
            plan_cluster(model, replace(layout, memory_bytes=nbytes), capacity)
        except OutOfMemory:
            return False
        return True

    return least(works, _window(model, layout, capacity).nbytes)


def least(works: Callable[[int], bool], enough: int) -> int:
    """Returns the fewest bytes, in whole MiB, for which `works` is true. `works` must be monotonic."""
    low, high = 0, -(-enough // MIB)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle * MIB) else (middle, high)
    return high * MIB


def _budget(name: str, model: PreparedModel, layout: Layout, capacity: int) -> Budget:
    if name == "window":
        return _window(model, layout, capacity)
    if name == "all":
        return whole(model, layout, capacity)
    return _planned(name, model, replace(layout, memory_bytes=_size(name, model, layout, capacity)), capacity)


def _window(model: PreparedModel, layout: Layout, capacity: int) -> Budget:
    return _planned("window", model, replace(layout, keeping=Keeping(pin="none")), capacity)


def _size(name: str, model: PreparedModel, layout: Layout, capacity: int) -> int:
    if name == "min":
        return smallest_budget(model, layout, capacity)
    if not name.endswith("%"):
        return parse_bytes(name)
    part = _percent(name)
    low = smallest_budget(model, layout, capacity)
    return low + int(part * (whole(model, layout, capacity).nbytes - low))


def _percent(name: str) -> float:
    try:
        part = int(name.removesuffix("%")) / 100
    except ValueError:
        part = -1.0
    if not 0 <= part <= 1:
        raise UserError(f"--budgets {name!r}: write a part of the way from min to all as 0% to 100%")
    return part


def _planned(name: str, model: PreparedModel, layout: Layout, capacity: int) -> Budget:
    return Budget(name, layout, plan_cluster(model, layout, capacity))


_READ_BYTES = 8 * MIB
_IN_FLIGHT = 8


def measure_sweep(pack: Pack, sweep: Sweep) -> DiskSpeed:
    """Reads the weights of `sweep` from disk for 0.7 s and measures the speed. Raises ReadFault, UserError."""
    view = memoryview(mmap.mmap(-1, _IN_FLIGHT * _READ_BYTES))
    waiting: deque[Future[int]] = deque()
    done, started, last = 0, time.perf_counter(), 0.0
    with ExitStack() as stack:
        paths = {pack.blob_path(piece.key) for piece in sweep.pieces}
        files = {path: stack.enter_context(DirectFile(path)) for path in paths}
        reader = stack.enter_context(DirectReader())  # last: it ends its reads before the files are closed
        for number, (path, offset, length) in enumerate(cycle(_reads(pack, sweep))):
            if len(waiting) == _IN_FLIGHT:
                done += waiting.popleft().result()
                last = time.perf_counter()
                if last - started >= 0.7:
                    break
            at = number % _IN_FLIGHT * _READ_BYTES
            waiting.append(reader.submit(files[path], offset, view[at : at + length]))
        is_direct = all(file.is_direct for file in files.values())
    return DiskSpeed(done / (last - started), is_direct)


def _reads(pack: Pack, sweep: Sweep) -> Iterator[tuple[Path, int, int]]:
    for piece in sweep.pieces:
        offset, length = pack.layout(piece.key).matrix(piece.matrix).span(piece.units.start, piece.units.stop)
        for start in range(0, length, _READ_BYTES):
            yield pack.blob_path(piece.key), offset + start, min(_READ_BYTES, length - start)


#: A node's figure -> the counter whose increase per step is the figure.
_PER_STEP = {
    "streamed_bytes": "disk_read_bytes",
    "reads": "reads",
    "prefetch_hits": "prefetch_hits",
    "stalls": "stalls",
    "stall_s": "weight_wait_s",
    "load_s": "load_s",
    "attention_s": "attention_s",
    "ffn_s": "ffn_s",
    "reduce_s": "reduce_wait_s",
    "head_s": "head_s",
}
NodeSample = dict[str, float]
"""A node's figures per step, by the names of _PER_STEP, and its memory at the end."""


@dataclass(frozen=True)
class Sample:
    s_per_token: float
    nodes: tuple[NodeSample, ...]

    @property
    def streamed_bytes(self) -> float:
        """The bytes that all nodes together read per token."""
        return sum(node["streamed_bytes"] for node in self.nodes)


def measure(
    model: PreparedModel, budget: Budget, prompt_tokens: int, tokens: int, places: tuple[Place, ...] = ()
) -> Sample:
    """Starts a cluster, warms it up, and decodes `tokens` tokens, one per step."""
    capacity = prompt_tokens + tokens
    with launch(model, budget.layout, budget.plan, capacity, places=places) as cluster:
        ask(cluster, model, prompt_tokens, min(tokens, 3), keep=False)
        before = cluster.stats()
        answer = ask(cluster, model, prompt_tokens, tokens, keep=True)
        after = cluster.stats()
    steps = after[0].steps - before[0].steps
    nodes = tuple(_node(start, end, steps) for start, end in zip(before, after, strict=True))
    return Sample(answer.s_per_token or 0.0, nodes)


def _node(before: Stats, after: Stats, steps: int) -> NodeSample:
    counters = _PER_STEP.items()
    found = {name: (getattr(after, one) - getattr(before, one)) / steps for name, one in counters}
    return found | {"peak_rss_bytes": after.peak_rss_bytes, "weight_bytes": after.weight_bytes}


def measure_in_group(model: PreparedModel, budget: Budget, prompt_tokens: int, tokens: int) -> "SettingRun":
    """Measures in a control group whose limit is the sum of all nodes' budgets. The result has a sample or a
    failure."""
    limit_bytes, sample, failure = budget.nbytes * budget.layout.nodes, None, ""
    with memory_group(limit_bytes) as group:
        place = Place(prefix=("sh", "-c", ENTER, str(group.members_file)))
        try:
            sample = measure(model, budget, prompt_tokens, tokens, (place,) * budget.layout.nodes)
        except (OutOfMemory, PeerLost) as error:
            failure = str(error)
        use = group.use()
    return SettingRun(sample, failure, GroupPeak(limit_bytes, use.peak_bytes, use.oom_kills))


@dataclass(frozen=True)
class GroupPeak:
    limit_bytes: int
    peak_bytes: int
    oom_kills: int


@dataclass(frozen=True)
class SettingRun:
    """One run's sample or failure. `disk`: the disk's bytes per second before and after the run."""

    sample: Sample | None
    failure: str = ""
    group: GroupPeak | None = None
    disk: tuple[float, float] = (0.0, 0.0)
    disk_is_direct: bool = True

    @property
    def disk_bytes_per_s(self) -> float:
        return fmean(self.disk)


def report(found: Sequence[Budget], runs: Mapping[str, Sequence[SettingRun]]) -> dict[str, Any]:
    """Returns the measured part of the JSON record. `runs` may have one more setting, for comparison."""
    compute_s, source = _compute(runs)
    settings = {budget.name: _setting(budget, runs[budget.name], compute_s) for budget in found}
    return {
        "compute_s_per_token": compute_s,
        "compute_from": source,
        "disk_is_direct": all(run.disk_is_direct for of_setting in runs.values() for run in of_setting),
        "target": 0.85,
        "settings": settings,
    }


def _compute(runs: Mapping[str, Sequence[SettingRun]]) -> tuple[float | None, str]:
    """Returns (seconds per token without waits for weights, the source of that number)."""
    settings = [[run.sample for run in of_setting if run.sample is not None] for of_setting in runs.values()]
    samples = [sample for of_setting in settings for sample in of_setting]
    if not samples:
        return None, "no run"
    resident = [sample.s_per_token for sample in samples if not _streams(sample)]
    if resident:
        return median(resident), "all in memory"
    return min(median(map(_unstalled, found)) for found in settings if found), "streaming without waits"


def _unstalled(sample: Sample) -> float:
    return sample.s_per_token - max(node["stall_s"] for node in sample.nodes)


def _streams(sample: Sample) -> bool:
    return any(node["reads"] for node in sample.nodes)


def _setting(budget: Budget, runs: Sequence[SettingRun], compute_s: float | None) -> dict[str, Any]:
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
        "nodes": [_node_medians(samples, rank) for rank in range(len(samples[0].nodes))],
    }


def _busy(sample: Sample) -> float:
    return min(1.0, max(node["load_s"] for node in sample.nodes) / sample.s_per_token)


def _node_medians(samples: Sequence[Sample], rank: int) -> dict[str, float]:
    nodes = [sample.nodes[rank] for sample in samples]
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
