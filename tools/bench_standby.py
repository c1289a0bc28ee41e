"""How long a node takes to be ready: from nothing, and promoted from a standby.

    .venv/bin/python tools/bench_standby.py PACK [--threads 2] [--repeats 3]

Printed, in seconds: "report" (standby started -> measured and waiting), "promoted" (bootstrap -> weights loaded, of
one waiting node), "cold" (the same without a standby). PACK is a folder that `tpiedge pack` wrote.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from unittest import mock

from tpiedge.errors import InternalError
from tpiedge.launch.child import Child
from tpiedge.launch.slot import Standby
from tpiedge.local.cluster import ClusterSpec, LocalCluster
from tpiedge.master.assignments import Assignment, Served
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share

_REPORT_S = 60.0


def main() -> int:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pack", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    spec = whole_model(arguments.pack, arguments.threads)
    times: dict[str, list[float]] = {"report": [], "promoted": [], "cold": []}
    for _ in range(arguments.repeats):
        started = time.perf_counter()
        standby = Standby(arguments.threads, measure=True)
        print(standby.report(time.monotonic() + _REPORT_S), file=sys.stderr)
        times["report"].append(time.perf_counter() - started)
        with mock.patch("tpiedge.local.cluster.Child", promoting(standby)):
            times["promoted"].append(start(spec))
        times["cold"].append(start(spec))
    print(json.dumps({name: statistics.median(values) for name, values in times.items()}, indent=2))
    return 0


def whole_model(pack: Path, threads: int) -> ClusterSpec:
    """One node with everything."""
    layer = Pack.open(pack).layout(0)
    share = NodeShare(Share(0, layer.matrix("q").units), Share(0, layer.matrix("gate").units))
    served = Served(pack.absolute(), "", "f32", 128, 128)
    return ClusterSpec(served, (Assignment("", share, threads, 0, ""),))


def promoting(standby: Standby) -> Callable[..., Child]:
    """What stands in for starting a process."""

    def promote(
        _module: str, line: bytes, _environment: Mapping[str, str], *, prefix: Sequence[str]
    ) -> Child:
        if prefix:
            raise InternalError("the standby node runs in no other place")
        standby.send_line(line)
        return standby

    return promote


def start(spec: ClusterSpec) -> float:
    """Seconds until all weights are loaded."""
    cluster = LocalCluster(spec)
    try:
        return seconds(cluster.start)
    finally:
        cluster.close()


def seconds(work: Callable[[], None]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
