"""Measures how long a node takes to be ready: from nothing, and forked by a fork server.

    .venv/bin/python tools/bench_node_start.py PACK [--threads 2] [--repeats 3]

Prints seconds: "report" (fork server started -> machine measured), "forked" (bootstrap -> weights loaded), "cold" (the
same with a fork server that has to start). PACK is a folder that `tpiedge pack` wrote.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from tpiedge.launch.slot import ForkServer
from tpiedge.local.cluster import LocalCluster
from tpiedge.master.assignments import Assignment, Served
from tpiedge.pack.reader import Pack

_REPORT_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pack", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    spec = whole_model(arguments.pack, arguments.threads)
    times: dict[str, list[float]] = {"report": [], "forked": [], "cold": []}
    for _ in range(arguments.repeats):
        started = time.perf_counter()
        server = ForkServer(arguments.threads, measure=True)
        print(server.report(time.monotonic() + _REPORT_S), file=sys.stderr)
        times["report"].append(time.perf_counter() - started)
        with mock.patch("tpiedge.local.cluster.ForkServer", return_value=server):
            times["forked"].append(start(*spec))
        times["cold"].append(start(*spec))
    print(json.dumps({name: statistics.median(values) for name, values in times.items()}, indent=2))
    return 0


def whole_model(pack: Path, threads: int) -> tuple[Served, tuple[Assignment, ...]]:
    served = Served(pack.absolute(), "", "f32", 128, 128)
    return served, (Assignment("", Pack.open(pack).whole, threads, 0, ""),)


def start(served: Served, assignments: tuple[Assignment, ...]) -> float:
    """Returns the seconds until all weights are loaded."""
    cluster = LocalCluster(served, assignments)
    try:
        return seconds(cluster.start)
    finally:
        cluster.close()


def seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
