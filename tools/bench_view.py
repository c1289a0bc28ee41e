"""Measure the cost of the page's view of a cluster that answers: `GET /admin/cluster` every second.

    .venv/bin/python -m tools.bench_view [MODEL] [--tokens 400] [--seconds 6] [--repeats 8]

A master and two workers stream answers, in turn for `--seconds` with and without the view. Printed, as median, least
and most: processor time per token of all processes without the view, and of all but the nodes' engines (which also wait
on the processor) without and with it; first the same per second of an idle cluster. Linux.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import psutil

from tests.process.serving.serving import Serving
from tools.figures import show
from tools.streaming import connection, events

_LOOK_S = 1.0
#: Longer than nodes are asked for counters after a look (`master/session_manager.py`).
FORGOTTEN_S = 6.0
#: Linux's clock of a process's own processor time.
_PROCESS: Final = 2
_LIMIT_S = 300.0
#: So slow that the plan wants the workers.
_SLOW = 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = _measured(Path(folder), options)
    show(found, as_json=options.as_json)
    return 0


def _measured(folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    cluster = Serving(folder / "cluster", "--min-workers", 2, model=options.model, bytes_per_s=_SLOW)
    try:
        cluster.start_master()
        for name in ("ann", "bob"):
            cluster.start_worker(name, bytes_per_s=_SLOW)
        cluster.wait_ready(3, _LIMIT_S)
        turns = _Turns(cluster, options)
        turns.take(turns.answer, looked_at=False)  # what is slow at first is not measured
        found: dict[str, list[float]] = {}
        for work, of in ((_rest, "ms per idle second"), (turns.answer, "ms per token")):
            for _ in range(options.repeats):
                time.sleep(FORGOTTEN_S)
                alone, seen = turns.take(work, looked_at=False), turns.take(work, looked_at=True)
                for name, value in (
                    (of, alone.all_ms),
                    (f"{of}, beside the engines", alone.beside_ms),
                    (f"{of}, beside the engines, looked at", seen.beside_ms),
                ):
                    found.setdefault(name, []).append(value)
        return found
    finally:
        cluster.close()


@dataclass(frozen=True)
class _Spent:
    """Milliseconds of processor time per token, or per second: of all threads, and of all but the engines."""

    all_ms: float
    beside_ms: float


class _Turns:
    """Turns of measuring on one cluster."""

    def __init__(self, cluster: Serving, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._options = options

    def take(self, work: Callable[[], int], *, looked_at: bool) -> "_Spent":
        """Measures a turn of `work`, which returns its amount. Repeats the turn if processes began or ended in it."""
        over = threading.Event()
        watcher = threading.Thread(target=looks, args=(self._cluster, over))
        if looked_at:
            watcher.start()
        try:
            while (found := self._turn(work)) is None:
                pass
            return found
        finally:
            over.set()
            if looked_at:
                watcher.join()

    def _turn(self, work: Callable[[], int]) -> "_Spent | None":
        roots, nodes = _family(self._cluster)
        before, done = _spent_s(roots, nodes), 0
        deadline = time.monotonic() + self._options.seconds
        while time.monotonic() < deadline:
            done += work()
        if _family(self._cluster) != (roots, nodes):
            return None
        all_s, beside_s = (now - then for now, then in zip(_spent_s(roots, nodes), before, strict=True))
        return _Spent(1000 * all_s / done, 1000 * beside_s / done)

    def answer(self) -> int:
        body = {
            "model": self._cluster.model,
            "prompt": "Once upon a time",
            "max_tokens": self._options.tokens,
            "ignore_eos": True,
            "stream": True,
        }
        with connection(self._cluster.url) as client:
            for _ in events(client, "/v1/completions", body):
                pass
        return int(self._options.tokens)


def _family(cluster: Serving) -> tuple[list[int], list[int]]:
    """Returns the processes of master and agents, and all their child processes, most of them nodes."""
    started = [cluster.master, *(worker.process for worker in cluster.workers.values())]
    roots = [one.pid for one in started if one is not None]
    children = [child.pid for pid in roots for child in psutil.Process(pid).children(recursive=True)]
    return roots, sorted(children)


def looks(cluster: Serving, over: threading.Event) -> None:
    """Polls the cluster as `page/watch.js` does."""
    tag = ""
    headers = {"Authorization": f"Bearer {cluster.secret}"}
    with httpx.Client(base_url=cluster.url, trust_env=False) as client:
        while not over.wait(_LOOK_S):
            seen = client.get("/admin/cluster", headers=headers | ({"If-None-Match": tag} if tag else {}))
            tag = seen.headers["etag"]


def _rest() -> int:
    """Sleeps for a second, as the work of an idle cluster; returns 1."""
    time.sleep(1.0)
    return 1


def _spent_s(roots: Sequence[int], nodes: Sequence[int]) -> tuple[float, float]:
    """Returns the seconds that all these processes have used, and the same without the engines of `nodes`."""
    found = sum(_process_s(pid) for pid in (*roots, *nodes))
    return found, found - sum(_engine_s(pid) for pid in nodes)


def _process_s(pid: int) -> float:
    """Returns the seconds of all threads of the process, also of ended threads."""
    return time.clock_gettime((~pid << 3) | _PROCESS)


def _engine_s(pid: int) -> float:
    """Returns the seconds of a node's engine, its first thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


if __name__ == "__main__":
    raise SystemExit(main())
