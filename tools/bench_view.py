"""What it costs to look at a cluster that answers, as the page's view does: `GET /admin/cluster` every second.

    .venv/bin/python -m tools.bench_view [MODEL] [--tokens 400] [--seconds 10] [--repeats 4]

A master and two workers on this computer stream one answer of `--tokens` after the other; in turn for `--seconds` while
nobody looks, and while somebody does. Nodes are asked for their counters for a while after a look, so between a turn
and the next one nobody looks for as long as that takes to end. Printed: milliseconds of processor time per token, of
the master, the agents and all nodes together, in both cases, and how much more it is with the view; each as median,
least and most of the repeats. What else the computer does changes them less than it changes how long a token takes.
Linux.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil

from tests.process.serving.serving import Serving
from tools.streaming import connection, events

_LOOK_S = 1.0
#: Longer than nodes are asked for counters after a look (`master/session_manager.py`).
_FORGOTTEN_S = 92.0
_LIMIT_S = 300.0
#: So slow that the plan wants the workers.
_SLOW = 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = _measured(Path(folder), options)
    if options.as_json:
        print(json.dumps(found))
        return 0
    for name, values in found.items():
        print(f"{name}: {statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})")
    return 0


def _measured(folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    cluster = Serving(folder / "cluster", "--min-workers", 2, model=options.model, bytes_per_s=_SLOW)
    try:
        cluster.start_master()
        for name in ("ann", "bob"):
            cluster.start_worker(name, bytes_per_s=_SLOW)
        cluster.wait_ready(3, _LIMIT_S)
        turns = _Turns(cluster, options)
        turns.take(looks=False)  # what is slow at first is not measured
        found: dict[str, list[float]] = {"ms per token": [], "ms per token, looked at": [], "% more": []}
        for number in range(options.repeats):
            if number:
                time.sleep(_FORGOTTEN_S)
            alone, seen = turns.take(looks=False), turns.take(looks=True)
            for values, value in zip(found.values(), (alone, seen, 100 * (seen / alone - 1)), strict=True):
                values.append(value)
        return found
    finally:
        cluster.close()


class _Turns:
    """Of a cluster that stands."""

    def __init__(self, cluster: Serving, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._options = options

    def take(self, *, looks: bool) -> float:
        """Milliseconds of processor time per token."""
        over = threading.Event()
        watcher = threading.Thread(target=self._look, args=(over,))
        if looks:
            watcher.start()
        try:
            before, tokens = self._cpu_s(), 0
            deadline = time.monotonic() + self._options.seconds
            while time.monotonic() < deadline:
                tokens += self._answer()
            return 1000 * (self._cpu_s() - before) / tokens
        finally:
            over.set()
            if looks:
                watcher.join()

    def _answer(self) -> int:
        """Its tokens."""
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

    def _look(self, over: threading.Event) -> None:
        """As `page/watch.js`."""
        tag = ""
        headers = {"Authorization": f"Bearer {self._cluster.secret}"}
        with httpx.Client(base_url=self._cluster.url, trust_env=False) as client:
            while not over.wait(_LOOK_S):
                seen = client.get("/admin/cluster", headers=headers | ({"If-None-Match": tag} if tag else {}))
                tag = seen.headers["etag"]

    def _cpu_s(self) -> float:
        """Of all processes of the cluster so far."""
        cluster = self._cluster
        roots = [cluster.master, *(worker.process for worker in cluster.workers.values())]
        family = [psutil.Process(one.pid) for one in roots if one is not None]
        family += [child for parent in list(family) for child in parent.children(recursive=True)]
        return sum(sum(one.cpu_times()[:2]) for one in family)


if __name__ == "__main__":
    raise SystemExit(main())
