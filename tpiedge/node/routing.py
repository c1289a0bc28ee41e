"""From measured links to the collectives of an epoch's all-reduces. Pure."""

from tpiedge.collectives.route import Route
from tpiedge.planner.network import NetworkFacts, choose
from tpiedge.wire.control import WorkerLink
from tpiedge.wire.fields import CollectiveChoice, WirePrecision
from tpiedge.wire.limits import MAX_ARRAY
from tpiedge.wire.tensors import wire_bytes


def route(
    wanted: CollectiveChoice,
    size: int,
    facts: NetworkFacts | None,
    row_bytes: int,
    chunk_bytes: int,
    wire: WirePrecision,
) -> tuple[Route, str]:
    """The route among `size` ranks, and in a sentence why, for all-reduces of `row_bytes` (one token) to `chunk_bytes`
    as f32. `facts`: of the links, where all nodes were to be linked; rank 0's alone are there in any case."""
    if size == 2 and wanted == "auto":
        return _one_way("mesh", wire), "two nodes exchange their parts: one latency"
    if size <= 2 or facts is None:
        return _one_way("star" if wanted == "auto" else wanted, wire), ""
    if wanted != "auto":
        # Also where this one could do without: a node that lacks a link takes part in the star alone.
        cut = _unreachable(facts)
        if cut and wanted != "star":
            return _one_way("star", wire), f"{wanted} is not possible: {cut} cannot reach each other"
        return _one_way(wanted, wire), ""
    small = choose(wire_bytes(wire, 1, row_bytes // 4), facts)
    bulk = choose(wire_bytes(wire, 1, chunk_bytes // 4), facts)
    small_bytes = row_bytes
    while (
        2 * small_bytes < chunk_bytes
        and choose(wire_bytes(wire, 1, small_bytes // 2), facts).collective == small.collective
    ):
        small_bytes *= 2
    return Route(small.collective, bulk.collective, small_bytes, wire), small.why


def worker_links(facts: NetworkFacts | None) -> tuple[WorkerLink, ...]:
    """Those between workers, as they were measured: the slowest first, MAX_ARRAY at most."""
    found = facts.round_trips_s.items() if facts is not None else ()
    links = [WorkerLink(low, high, trip_s) for (low, high), trip_s in found if low > 0]
    return tuple(sorted(links, key=lambda link: (-link.round_trip_s, link.low, link.high))[:MAX_ARRAY])


def _one_way(name: CollectiveChoice, wire: WirePrecision) -> Route:
    assert name != "auto"
    return Route(name, name, 0, wire)


def _unreachable(facts: NetworkFacts) -> str:
    pairs = [
        f"nodes {low} and {high}"
        for high in range(facts.size)
        for low in range(high)
        if facts.link(low, high) is None
    ]
    return ", ".join(pairs[:3])
