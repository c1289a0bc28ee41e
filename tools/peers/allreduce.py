"""All-reduces of tpiedge and of torch.distributed's gloo over the same links, in alternation."""

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from tpiedge.errors import UserError
from tpiedge.lab.bench.figures import spread
from tpiedge.lab.bench.reduce_cluster import ReduceCluster
from tpiedge.lab.testbed.running import RunningTestbed, open_testbed
from tpiedge.launch.child import Place
from tpiedge.planner.network import choose
from tpiedge.wire.fields import CollectiveChoice, CollectiveName

from .allreduce_gloo import GlooGroup
from .spread import ratios

_WARM_UP = 20


def compare_allreduces(arguments: argparse.Namespace) -> dict[str, Any]:
    """Bring up both groups for every number of nodes and measure in turn.

    Raises UserError, PeerError, ResourceError.
    """
    if arguments.bytes % 4:
        raise UserError(f"--bytes {arguments.bytes}: payloads are f32, multiples of 4")
    if arguments.testbed is None:
        results = [_compare(nodes, [Place()] * nodes, None, arguments) for nodes in arguments.nodes]
    else:
        results = _on_testbed(arguments)
    return {
        "testbed": arguments.testbed,
        "rounds": arguments.rounds,
        "repeats": arguments.repeats,
        "results": results,
    }


def _on_testbed(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    with open_testbed(arguments.testbed, say=lambda line: print(line, file=sys.stderr)) as testbed:
        if max(arguments.nodes) > len(testbed.devices):
            raise UserError(
                f"--nodes {max(arguments.nodes)}: the testbed {testbed.name} has {len(testbed.devices)} devices"
            )
        # Rank 0 of tpiedge is this process, without the limits of a device; so gloo's is put there without them too.
        with testbed.inside(testbed.devices[0]):
            return [_compare(nodes, _places(testbed, nodes), testbed, arguments) for nodes in arguments.nodes]


def _places(testbed: RunningTestbed, nodes: int) -> list[Place]:
    first, *others = testbed.devices[:nodes]
    return [Place(first.address), *(device.place for device in others)]


def _compare(
    nodes: int, places: Sequence[Place], testbed: RunningTestbed | None, arguments: argparse.Namespace
) -> dict[str, Any]:
    nbytes, rounds = arguments.bytes, arguments.rounds
    theirs: list[float] = []
    ours: list[float] = []
    with GlooGroup(places) as gloo, ReduceCluster(nodes, places) as own:
        collective = _collective(arguments.collective, nbytes, own)
        for repeat in range(arguments.repeats):
            print(f"{nodes} nodes, repeat {repeat + 1} of {arguments.repeats}", file=sys.stderr)
            theirs.append(statistics.median(gloo.measure(nbytes, _WARM_UP, rounds)))
            ours.append(statistics.median(own.measure(collective, nbytes, rounds)))
    latency_s = testbed.expected(*testbed.devices[:2]).latency_s if testbed else None
    return report(nodes, nbytes, collective, latency_s, theirs, ours)


def _collective(wanted: CollectiveChoice, nbytes: int, own: ReduceCluster) -> CollectiveName:
    return choose(nbytes, own.survey()).collective if wanted == "auto" else wanted


def report(
    nodes: int,
    nbytes: int,
    collective: CollectiveName,
    latency_s: float | None,
    theirs: Sequence[float],
    ours: Sequence[float],
) -> dict[str, Any]:
    """Medians of the rounds of every repeat, and their ratio repeat by repeat."""
    found = ratios(theirs, ours)
    required = required_ratio(nodes, nbytes, latency_s)
    median = statistics.median(found)
    return {
        "nodes": nodes,
        "bytes": nbytes,
        "latency_s": latency_s,
        "collective": collective,
        "gloo_s": spread(theirs),
        "tpiedge_s": spread(ours),
        "times_slower_than_tpiedge": {
            "ratio": spread(found),
            "required": required,
            "met": None if required is None else median >= required,
        },
    }


def required_ratio(nodes: int, nbytes: int, latency_s: float | None) -> float | None:
    """Returns how many times faster than gloo tpiedge has to be; None without a goal."""
    return (
        5.0
        if (nodes, nbytes) == (8, 4) and latency_s is not None and round(1e3 * latency_s, 6) == 1
        else None
    )
