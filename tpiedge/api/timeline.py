"""Shows the work of all machines in one step on one axis of seconds. Pure.

Clocks are not compared. Apart from travel time, an all-reduce ends at the same moment on all machines. So each
machine's spans are shifted until its all-reduces end together with rank 0's. Rank 0 begins and ends the step.

In an all-reduce, a machine waits until the last machine begins this all-reduce. The rest is network time. A machine
also waits for rank 0 before its first span and after its last span."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final, TypeAlias

from tpiedge.master.counters import StepTimeline
from tpiedge.master.status import NodeStatus
from tpiedge.tracing.tracer import Interval, union, without
from tpiedge.wire.control import StepSpans

_Spans: TypeAlias = list[Interval]

PARTS: Final = ("compute", "wait", "network", "disk")


def shown_step(
    timeline: StepTimeline | None, nodes: Sequence[NodeStatus], epoch: int
) -> dict[str, Any] | None:
    """Returns the step as JSON, or None without a step of `epoch`. May take milliseconds."""
    if timeline is None or timeline.epoch != epoch:
        return None
    first = timeline.spans[0]
    edges = [
        edge for part in (first.compute, first.reduce, first.disk) for span in part for edge in span
    ] or [0]
    begun, ended = min(edges) * 1e-6, max(edges) * 1e-6
    moved = [_moved(first, one, begun, ended) for one in timeline.spans]
    # The time at which the last machine began each all-reduce, counted from the last one: rank 0's first one announces
    # the step and has no counterpart.
    reduces = zip(*(reversed(one["reduce"]) for one in moved), strict=False)
    latest = [max(start for start, _ in same) for same in reduces]
    parts = [_parts(one, latest, begun, ended, leads=rank == 0) for rank, one in enumerate(moved)]
    return {
        "step": first.step,
        "at": round(timeline.at, 3),
        "tokens": first.tokens,
        "took_s": round(ended - begun, 6),
        "machines": [
            {
                "name": node.name,
                "host": node.host,
                "rank": node.rank,
                **{
                    f"{part}_s": round(sum(end - start for start, end in spans), 6)
                    for part, spans in parts[node.rank].items()
                },
                "spans": {
                    part: [[round(start - begun, 6), round(end - begun, 6)] for start, end in spans]
                    for part, spans in parts[node.rank].items()
                },
            }
            for node in sorted(nodes, key=lambda node: -1 if node.rank is None else node.rank)
            if node.rank is not None and node.rank < len(parts)
        ],
    }


def _moved(first: StepSpans, own: StepSpans, begun: float, ended: float) -> Mapping[str, _Spans]:
    pairs = zip(reversed(first.reduce), reversed(own.reduce), strict=False)
    shift = median([there[1] - here[1] for there, here in pairs] or [0])

    def at(micros: int) -> float:
        return min(max((micros + shift) * 1e-6, begun), ended)

    return {
        kind: [(at(start), max(at(start), at(end))) for start, end in spans]  # a node may lie
        for kind, spans in (("compute", own.compute), ("reduce", own.reduce), ("disk", own.disk))
    }


def _parts(
    own: Mapping[str, _Spans], latest: Sequence[float], begun: float, ended: float, *, leads: bool
) -> dict[str, _Spans]:
    wait: _Spans = []
    network: _Spans = []
    compute, disk = union(own["compute"]), union(own["disk"])
    for number, (start, end) in enumerate(reversed(own["reduce"])):
        last = min(max(start, latest[number]), end) if number < len(latest) else start
        wait.append((start, last))
        network.append((last, end))
    if not leads:
        edges = [edge for part in own.values() for span in part for edge in span]
        wait += [(begun, min(edges, default=ended)), (max(edges, default=ended), ended)]
    return {
        "compute": [left for span in compute for left in without(span, disk)] if disk else compute,
        "wait": union(wait),
        "network": union(network),
        "disk": disk,
    }
