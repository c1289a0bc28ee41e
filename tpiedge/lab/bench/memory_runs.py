"""One run of `tpiedge bench memory`: a setting, the disk, a cluster that decodes, perhaps in a control group."""

import json
import mmap
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import IO, Any

from tpiedge.errors import OutOfMemory, UserError
from tpiedge.host.disk_speed import DiskSpeed
from tpiedge.host.memory_group import ENTER, memory_group
from tpiedge.lab.bench.figures import ask
from tpiedge.local.launch import Layout, launch, plan_cluster
from tpiedge.local.prepare import PreparedModel
from tpiedge.memory.pinning import Placement, placed
from tpiedge.memory.reader import DirectFile, DirectReader, ReadJob
from tpiedge.memory.sweep import Sweep
from tpiedge.pack.reader import Pack
from tpiedge.planner.solve import Plan
from tpiedge.units import MIB, parse_bytes
from tpiedge.wire.control import Stats
from tpiedge.wire.weights import Keeping


@dataclass(frozen=True)
class Budget:
    """One setting: what was asked for, and the plan of it."""

    name: str
    layout: Layout
    plan: Plan

    @property
    def nbytes(self) -> int:
        """The limit of every node, or where there is none what the largest node is predicted to take."""
        if self.layout.memory_bytes is not None:
            return self.layout.memory_bytes
        return max(need.total_bytes for need in self.plan.needs)

    def held(self, model: PreparedModel) -> list[tuple[Sweep, Placement]]:
        """What each node reads in a sweep, and what of it stays in memory."""
        sweeps = [Sweep.of(model.pack, share, rank == 0) for rank, share in enumerate(self.plan.shares)]
        pairs = zip(sweeps, self.plan.needs, strict=True)
        return [(sweep, placed(need.weights, sweep)) for sweep, need in pairs]

    def streams(self, model: PreparedModel) -> bool:
        """Whether any weights pass through a ring."""
        return any(len(placement.pinned) < len(sweep.pieces) for sweep, placement in self.held(model))


def budgets(text: str, model: PreparedModel, layout: Layout, capacity: int) -> list[Budget]:
    """The settings of `--budgets`, the smallest first. Raises UserError, or OutOfMemory for one that cannot work."""
    names = dict.fromkeys(item.strip().lower() for item in text.split(","))
    found = [_budget(name, model, layout, capacity) for name in names]
    return sorted(found, key=lambda budget: budget.nbytes)


def whole(model: PreparedModel, layout: Layout, capacity: int) -> Budget:
    """Everything in memory. Raises OutOfMemory where this computer is too small."""
    return _planned("all", model, replace(layout, keeping=Keeping(pin="all")), capacity)


def smallest_budget(model: PreparedModel, layout: Layout, capacity: int) -> int:
    """The least memory per node, in whole MiB, with which a cluster works."""

    def works(nbytes: int) -> bool:
        try:
            plan_cluster(model, replace(layout, memory_bytes=nbytes), capacity)
        except OutOfMemory:
            return False
        return True

    return least(works, _window(model, layout, capacity).nbytes)


def least(works: Callable[[int], bool], enough: int) -> int:
    """The least whole number of MiB that works; `enough` bytes do, and more than what works works too."""
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
    """Bytes per node."""
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


def measure_sweep(pack: Pack, sweep: Sweep, seconds: float = 0.7) -> DiskSpeed:
    """Read the pieces of the sweep in order, again and again, for so long, with a node's four threads, and count
    nothing but the bytes. Raises ReadFault, UserError."""
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
                if last - started >= seconds:
                    break
            at = number % _IN_FLIGHT * _READ_BYTES
            waiting.append(reader.submit(ReadJob(files[path], offset, view[at : at + length], _unchecked)))
        is_direct = all(file.is_direct for file in files.values())
    return DiskSpeed(done / (last - started), is_direct)


def _reads(pack: Pack, sweep: Sweep) -> Iterator[tuple[Path, int, int]]:
    """(file, offset, length) of all reads of a sweep."""
    for piece in sweep.pieces:
        offset, length = pack.layout(piece.key).matrix(piece.matrix).span(piece.units.start, piece.units.stop)
        for start in range(0, length, _READ_BYTES):
            yield pack.blob_path(piece.key), offset + start, min(_READ_BYTES, length - start)


def _unchecked(_data: memoryview) -> None:
    """What is read is not used."""


_WARM_UP = 3


@dataclass(frozen=True)
class NodeSample:
    """One node's bytes, counts and seconds per token of decoding, and its memory in the end."""

    streamed_bytes: float
    reads: float
    prefetch_hits: float
    stalls: float
    stall_s: float
    load_s: float
    attention_s: float
    ffn_s: float
    reduce_s: float
    head_s: float
    peak_rss_bytes: int
    weight_bytes: int


@dataclass(frozen=True)
class Sample:
    """One run's figures."""

    s_per_token: float
    nodes: tuple[NodeSample, ...]

    @property
    def streamed_bytes(self) -> float:
        """Per token, of all nodes: they share the disk."""
        return sum(node.streamed_bytes for node in self.nodes)

    @staticmethod
    def of_json(record: Mapping[str, Any]) -> "Sample":
        """Reads what `asdict` made of one in another process."""
        return Sample(record["s_per_token"], tuple(NodeSample(**node) for node in record["nodes"]))


def measure(model: PreparedModel, budget: Budget, prompt_tokens: int, tokens: int) -> Sample:
    """A fresh cluster: a few tokens to warm up, then `tokens` in as many steps."""
    capacity = prompt_tokens + tokens
    with launch(model, budget.layout, budget.plan, capacity) as cluster:
        ask(cluster, model, prompt_tokens, min(tokens, _WARM_UP), keep=False)
        before = cluster.stats()
        answer = ask(cluster, model, prompt_tokens, tokens, keep=True)
        after = cluster.stats()
    steps = after[0].steps - before[0].steps
    nodes = tuple(_node(start, end, steps) for start, end in zip(before, after, strict=True))
    return Sample(answer.s_per_token or 0.0, nodes)


def _node(before: Stats, after: Stats, steps: int) -> NodeSample:
    def per_step(counter: str) -> float:
        difference: float = (getattr(after, counter) - getattr(before, counter)) / steps
        return difference

    return NodeSample(
        streamed_bytes=per_step("disk_read_bytes"),
        reads=per_step("reads"),
        prefetch_hits=per_step("prefetch_hits"),
        stalls=per_step("stalls"),
        stall_s=per_step("weight_wait_s"),
        load_s=per_step("load_s"),
        attention_s=per_step("attention_s"),
        ffn_s=per_step("ffn_s"),
        reduce_s=per_step("reduce_wait_s"),
        head_s=per_step("head_s"),
        peak_rss_bytes=after.peak_rss_bytes,
        weight_bytes=after.weight_bytes,
    )


_ENDING_S = 10.0


@dataclass(frozen=True)
class GroupRun:
    """What a command left: the JSON that it printed, or else why it failed; the most that its group used, page cache
    included, and how many processes were killed for want of memory."""

    record: dict[str, Any] | None
    failure: str
    peak_bytes: int
    oom_kills: int


def run_in_group(limit_bytes: int, arguments: Sequence[str]) -> GroupRun:
    """`tpiedge ARGUMENTS`, which prints JSON, below the limit. It is told of the end of this process by the end of its
    standard input."""
    with memory_group(limit_bytes) as group:
        # -P: a folder named numpy in the user's working directory must not be imported.
        entry = [sys.executable, "-P", "-c", "from tpiedge.cli.entry import main; main()"]
        status, out, err = _run(["sh", "-c", ENTER, str(group.members_file), *entry, *arguments])
        failure = "" if not status else f"status {status}: {err.strip().rpartition(chr(10))[2]}"
        use = group.use()
        return GroupRun(None if status else json.loads(out), failure, use.peak_bytes, use.oom_kills)


def _run(command: Sequence[str]) -> tuple[int, str, str]:
    """Status, output and errors of a command whose own waits are bounded. A session of its own: Ctrl-C reaches this
    process alone, which ends it in order."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True
        )
        try:
            status = process.wait()
        finally:
            _end(process)
        return status, _text(out), _text(err)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The end of its standard input asks it to go; SIGKILL follows if it does not."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
