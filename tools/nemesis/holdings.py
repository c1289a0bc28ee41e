"""Holdings of master and workers before and after a run; they must not grow."""

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psutil

from tests.process.network.namespaces import MASTER
from tools.nemesis.stage import PAGE_BYTES, Stage
from tools.streaming import connection
from tpiedge.host.private_file import PAGES
from tpiedge.kv.page_folder import PARKED

_SETTLED_S = 120.0
_POLL_S = 0.5
_PART = 1 << 20


@dataclass(frozen=True)
class Held:
    """Holdings of a master or an agent. `processes`: its children; `resident` and `disk` (its folders, without pages of
    the KV cache) in MiB."""

    descriptors: int
    threads: int
    processes: int
    resident: int
    disk: int


#: Allowed growth: descriptors, threads and processes that come and go.
_MORE = Held(descriptors=8, threads=8, processes=1, resident=32, disk=1)


def held(stage: Stage) -> dict[str, Held]:
    cluster = stage.cluster
    found = {"master": _of(psutil.Process(cluster.master.pid), cluster.state)}
    for name in stage.names:
        worker = cluster.workers[name]
        found[name] = _of(worker.agent, worker.state, worker.cache)
    return found


def _of(process: psutil.Process, *folders: Path) -> Held:
    return Held(
        process.num_fds(),
        process.num_threads(),
        len(process.children(recursive=True)),
        process.memory_info().rss >> 20,
        sum(_blocks(file) for folder in folders for file in folder.rglob("*") if PAGES not in file.parts)
        * 512
        >> 20,
    )


def _blocks(path: Path) -> int:
    """Counts blocks of 512 bytes on disk; 0 for a file that was just deleted."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return found.st_blocks if stat.S_ISREG(found.st_mode) else 0


def left_over(
    stage: Stage, before: Mapping[str, Held], pack_bytes: int, mend: Callable[[], None]
) -> list[str]:
    """Describes growth. A worker may have the whole pack. Calls `mend` until the cluster is whole."""
    deadline = time.monotonic() + _SETTLED_S
    while not _whole(status := stage.cluster.status(), stage.names):
        if time.monotonic() > deadline:
            nodes = "; ".join(
                f"{one['host'] or 'master'} {one['state']}: {one['why']}" for one in status["nodes"]
            )
            return [f"the cluster is not whole after {_SETTLED_S:.0f} s: {status['reason']} ({nodes})"]
        mend()
        time.sleep(_POLL_S)
    found: list[str] = []
    deadline = time.monotonic() + _SETTLED_S
    while time.monotonic() < deadline:
        found = _grown(before, held(stage), pack_bytes >> 20) + _pages_beyond(stage)
        if not found:
            break
        time.sleep(_POLL_S)
    for name in stage.names:
        found += [f"{name}: {path.name}" for path in stage.cluster.workers[name].cache.rglob("*.part")]
    logs = sorted(stage.cluster.folder.glob("*.log"))
    found += [f"a traceback in {log.name}" for log in logs if "Traceback" in log.read_text(errors="replace")]
    return found


def parked_files(stage: Stage) -> list[str]:
    """Ends the cluster in order. Names what is parked then."""
    stage.cluster.close()
    return [
        f"{name}: {path.name}" for name, folder in stage.pages.items() for path in folder.glob(f"{PARKED}/*")
    ]


def moved_pages(stage: Stage) -> Counter[str]:
    """Counts pages that the nodes of this epoch left, brought and evicted."""
    with connection(stage.cluster.url) as client:
        metrics = client.get("/metrics").raise_for_status().text
    found = re.findall(
        r"^tpiedge_node_kv_(left|brought|evicted)_pages_total{.*} (\d+)", metrics, re.MULTILINE
    )
    return sum((Counter({move: int(count)}) for move, count in found), Counter[str]())


def _pages_beyond(stage: Stage) -> list[str]:
    """Names machines with more pages than they may have, and unfinished files of those that serve, which found them at
    their start."""
    serving = {node["host"] or MASTER for node in stage.cluster.status()["nodes"] if node["rank"] is not None}
    found = []
    for name, folder in stage.pages.items():
        for kind, limit in PAGE_BYTES.items():
            sizes = {path: _blocks(path) * 512 for path in folder.glob(f"{kind}/*")}
            if sum(sizes.values()) > limit:
                found.append(f"{name}: {sum(sizes.values())} bytes of {kind} pages")
            if name in serving:
                found += [f"{name}: {path.name}" for path in sizes if path.suffix == ".partial"]
    return found


def _whole(status: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether it serves, and every worker takes part, or may (one more is not always worth a new plan), or waits
    because it failed: for half an hour at most."""
    there = {node["host"] for node in status["nodes"] if node["state"] in ("ready", "spare", "left out")}
    return status["ready"] and there.issuperset(names)


def _grown(before: Mapping[str, Held], after: Mapping[str, Held], pack: int) -> list[str]:
    found = []
    for name, now in after.items():
        for one in fields(Held):
            old, new = getattr(before[name], one.name), getattr(now, one.name)
            more = getattr(_MORE, one.name) + (pack if one.name == "disk" else 0)
            if new > old + more:
                found.append(f"{name}: {one.name} {new}, {old} before")
    return found


def reading_s(stage: Stage) -> float:
    """Returns the seconds to read from disk, one after the other, what all workers have."""
    files = [file for name in stage.names for file in stage.cluster.workers[name].cache.rglob("*")]
    began = time.monotonic()
    for file in files:
        if file.is_file():
            _read_from_disk(file)
    return time.monotonic() - began


def _read_from_disk(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        while os.read(fd, _PART):
            pass
    finally:
        os.close(fd)
