from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.collectives.communicator import Route
from tpiedge.node.data_plane import route, worker_links
from tpiedge.planner.network import NetworkFacts, PairFacts
from tpiedge.wire.control import WorkerLink
from tpiedge.wire.fields import MAX_ARRAY, CollectiveChoice, CollectiveName

ROW, CHUNK = 8192, 1 << 20
MBIT300 = 300e6 / 8


def facts(
    size: int, *cut: tuple[int, int], latency_s: float = 1e-3, rate: float | None = MBIT300
) -> NetworkFacts:
    pairs = set(combinations(range(size), 2)) - set(cut)
    return NetworkFacts({pair: PairFacts(latency_s, rate) for pair in pairs}, tuple(range(size)))


@pytest.mark.parametrize("wanted", ["auto", "mesh"])
def test_two_nodes_use_the_mesh(wanted: CollectiveChoice) -> None:
    assert route(wanted, 2, None, ROW, CHUNK, "f32")[0] == Route("mesh", "mesh")


@pytest.mark.parametrize("wanted", ["star", "mesh", "two-shot"])
def test_requested_collective_is_used_if_all_are_linked(wanted: CollectiveName) -> None:
    assert route(wanted, 4, facts(4), ROW, CHUNK, "bf16") == (Route(wanted, wanted, 0, "bf16"), "")


@pytest.mark.parametrize("wanted", ["mesh", "two-shot"])
def test_missing_link_forces_the_star(wanted: CollectiveName) -> None:
    chosen, why = route(wanted, 4, facts(4, (1, 3)), ROW, CHUNK, "f32")
    assert chosen == Route("star", "star")
    assert why == f"{wanted} is not possible: nodes 1 and 3 cannot reach each other"


def test_auto_says_which_nodes_cannot_reach_each_other() -> None:
    chosen, why = route("auto", 4, facts(4, (2, 3), (1, 2)), ROW, CHUNK, "f32")
    assert (chosen.small, chosen.bulk) == ("star", "star")
    assert why == "all traffic goes through node 0: nodes 1 and 2 cannot reach each other"


def test_auto_picks_mesh_for_row_two_shot_for_chunk() -> None:
    chosen, why = route("auto", 8, facts(8), ROW, CHUNK, "f32")
    assert (chosen.small, chosen.bulk) == ("mesh", "two-shot")
    assert ROW <= chosen.small_bytes < CHUNK
    assert why.startswith("predicted for 8.2 kB: ") or "mesh" in why


_LATENCIES = st.one_of(st.just(0.0), st.just(5e8), st.floats(0.0, 5e8))
_RATES = st.none() | st.floats(1.0, 1e18)


@given(
    size=st.integers(3, 6),
    wanted=st.sampled_from(("auto", "star", "mesh", "two-shot")),
    wire=st.sampled_from(("f32", "bf16", "int8")),
    hosts=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    data=st.data(),
)
def test_random_network_facts_always_give_a_route(size, wanted, wire, hosts, data):
    links = {}
    for low, high in combinations(range(size), 2):
        if low == 0 or data.draw(st.booleans()):
            links[low, high] = PairFacts(data.draw(_LATENCIES), data.draw(_RATES))
    network = NetworkFacts(links, tuple(hosts[:size]), dict.fromkeys(hosts, 1))
    chosen, why = route(wanted, size, network, ROW, CHUNK, wire)
    whole = len(links) == size * (size - 1) // 2
    assert chosen.wire == wire
    assert whole or (chosen.small, chosen.bulk) == ("star", "star")
    if whole and wanted != "auto":
        assert (chosen.small, chosen.bulk, why) == (wanted, wanted, "")
    assert why.isprintable()


def test_worker_links_are_limited_and_sorted_slowest_first() -> None:
    trips = {pair: sum(pair) / 1000 for pair in combinations(range(20), 2)}
    found = worker_links(replace(facts(20), round_trips_s=trips))
    assert found[:2] == (WorkerLink(18, 19, 0.037), WorkerLink(17, 19, 0.036))
    assert len(found) == MAX_ARRAY
    assert worker_links(replace(facts(3), round_trips_s={(0, 1): 1.0, (1, 2): 2.0})) == (
        WorkerLink(1, 2, 2.0),
    )
    assert worker_links(facts(3)) == worker_links(None) == ()
