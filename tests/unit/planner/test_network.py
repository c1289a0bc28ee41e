"""What an all-reduce takes, in numbers computed by hand, and laws for any network."""

from dataclasses import replace
from itertools import combinations
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import InternalError
from tpiedge.planner.network import (
    TIE,
    ChosenCollective,
    CollectivePrediction,
    Costs,
    NetworkFacts,
    PairFacts,
    choose,
    predict,
)
from tpiedge.wire.fields import CollectiveName

MS = 1e-3
FREE = Costs(0.0, 0.0, 0.0, 0.0)
COLLECTIVES = get_args(CollectiveName)
MBIT300 = 300e6 / 8


def alike(size: int, latency_s: float, rate: float | None = None, **more) -> NetworkFacts:
    """`size` machines with equal links."""
    links = {pair: PairFacts(latency_s, rate) for pair in combinations(range(size), 2)}
    return NetworkFacts(links, tuple(range(size)), **more)


def milliseconds(collective: CollectiveName, nbytes: int, facts: NetworkFacts) -> float:
    found = predict(collective, nbytes, facts)
    assert found is not None
    return found.seconds / MS


# The paper's eight devices: 1 ms, 300 Mbit/s. 8192 bytes take 0.218453 ms, a MiB 27.9620 ms.
@pytest.mark.parametrize(
    ("collective", "decode_ms", "prefill_ms"),
    [
        ("star", 2 + 14 * 0.218453, 2 + 14 * 27.9620),
        ("mesh", 1 + 7 * 0.218453, 1 + 7 * 27.9620),
        ("two-shot", 2 + 14 / 8 * 0.218453, 2 + 14 / 8 * 27.9620),
        # Two heads, one with three children: 3 in, 2 in, 2 out, 3 out.
        ("tree", 4 + 10 * 0.218453, 4 + 10 * 27.9620),
        ("ring", 14 + 14 / 8 * 0.218453, 14 + 14 / 8 * 27.9620),
    ],
)
def test_the_papers_testbed(collective, decode_ms, prefill_ms):
    facts = alike(8, 1 * MS, MBIT300, costs=FREE)
    assert milliseconds(collective, 8192, facts) == pytest.approx(decode_ms, rel=1e-5)
    assert milliseconds(collective, 1 << 20, facts) == pytest.approx(prefill_ms, rel=1e-5)


@pytest.mark.parametrize(
    ("collective", "latencies"), [("star", 2), ("mesh", 1), ("two-shot", 2), ("tree", 4), ("ring", 14)]
)
def test_four_bytes_cost_latencies_alone(collective, latencies):
    found = predict(collective, 4, alike(8, 5 * MS, costs=FREE))
    assert found == CollectivePrediction(pytest.approx(latencies * 5 * MS), 0.0, 0.0)


def test_processing_by_hand():
    """Per message of 8000 bytes and end 10 + 8 = 18 us. Star: 1 sent, 7 received, and back; mesh: 7 sent and received.
    Where it goes step by step 30 + 8 = 38 us, or with slices of 1000 bytes 31: two-shot: twice 7 sent and received;
    tree: 1 + 3, 1 + 2, 2 + 1, 3 + 1; ring: 14 times 1 + 1."""
    facts = alike(8, 1 * MS, costs=Costs(message_s=10e-6, byte_s=1e-9, wake_s=5e-6, stepwise_s=30e-6))
    us = {name: round(predict(name, 8000, facts).processing_s * 1e6) for name in COLLECTIVES}
    assert us == {
        "star": 2 * (8 * 18 + 5),
        "mesh": 14 * 18 + 5,
        "two-shot": 2 * (14 * 31 + 5),
        "tree": 14 * 38 + 4 * 5,
        "ring": 14 * (2 * 31 + 5),
    }


def test_the_papers_testbed_wants_the_mesh_to_decode_and_two_shot_to_prefill():
    facts = alike(8, 1 * MS, MBIT300)
    decode, prefill = choose(8192, facts), choose(1 << 20, facts)
    assert (decode.collective, prefill.collective) == ("mesh", "two-shot")
    assert decode.why == "predicted for 8.2 kB: star 5.5 ms, mesh 2.9 ms, two-shot 4.4 ms"
    assert prefill.why == "predicted for 1.0 MB: star 405 ms, mesh 207 ms, two-shot 55 ms"
    assert set(decode.predictions) == set(COLLECTIVES)


# Loopback on two cores, medians of `tpiedge bench allreduce` in ms, star (two nodes: their exchange).
@pytest.mark.parametrize(
    ("size", "collective", "nbytes", "measured_ms"),
    [
        (2, "mesh", 4, 0.087),
        (2, "mesh", 32768, 0.119),
        (2, "mesh", 262144, 0.424),
        (4, "star", 4, 0.213),
        (4, "star", 32768, 0.401),
        (4, "star", 262144, 1.640),
        (8, "star", 4, 0.439),
        (8, "star", 32768, 0.887),
        (8, "star", 262144, 3.418),
    ],
)
def test_loopback_is_predicted_as_it_was_measured(size, collective, nbytes, measured_ms):
    found = milliseconds(collective, nbytes, loopback(size))
    assert found == pytest.approx(measured_ms, rel=0.30)


def loopback(size: int, cores: int = 2) -> NetworkFacts:
    links = {pair: PairFacts(0.0) for pair in combinations(range(size), 2)}
    return NetworkFacts(links, ("here",) * size, {"here": cores})


def test_nodes_of_one_host_share_its_cores():
    """Four nodes, 0 bytes, 20 us a message: up the leaves send 3 on 2 cores and the root receives 3, down likewise.
    In a mesh 12 are sent and 12 received on 2 cores. So what takes fewer messages wins where there is no network."""
    facts = loopback(4)
    assert milliseconds("star", 0, facts) == pytest.approx(2 * (0.025 + 0.020 * (1.5 + 3)))
    assert milliseconds("mesh", 0, facts) == pytest.approx(0.025 + 0.020 * (6 + 6))
    assert choose(4, facts).collective == "star"
    # With many cores the mesh is the one hop that it should be: 3 sent, 3 received.
    assert milliseconds("mesh", 0, loopback(4, 64)) == pytest.approx(0.025 + 0.020 * 6)
    assert choose(4, loopback(4, 64)).collective == "mesh"


def wifi(costs: Costs = FREE) -> NetworkFacts:
    """Two machines on a cable (0.3 ms, 100 MB/s), a third on slow Wi-Fi (4 ms, 5 MB/s) to both."""
    cable, air = PairFacts(0.3 * MS, 100e6), PairFacts(4 * MS, 5e6)
    return NetworkFacts({(0, 1): cable, (0, 2): air, (1, 2): air}, ("a", "b", "c"), costs=costs)


def test_a_slow_worker_decides():
    """1 MB: by star 200 ms each way over the air; in a mesh 2 MB leave the slow port; two-shot takes 2/3 MB, twice."""
    assert milliseconds("star", 10**6, wifi()) == pytest.approx(2 * (4 + 200))
    assert milliseconds("mesh", 10**6, wifi()) == pytest.approx(4 + 400)
    assert milliseconds("two-shot", 10**6, wifi()) == pytest.approx(2 * (4 + 400 / 3))
    # 0 <- 1 <- 2: air, cable, cable, air.
    assert milliseconds("tree", 10**6, wifi()) == pytest.approx(2 * (4 + 200) + 2 * (0.3 + 10))
    # Three thirds of a MB go from node 1 to 2 without a pause; then node 2 passes on the last one: 4 ms, twice.
    assert milliseconds("ring", 10**6, wifi()) == pytest.approx(4 * 200 / 3 + 2 * 4)
    assert [choose(nbytes, wifi(Costs())).collective for nbytes in (8000, 10**6)] == ["mesh", "two-shot"]


def test_the_slowest_way_up_and_the_slowest_way_down_are_different_leaves():
    """Latency wins one way and bytes the other: 9 ms up from node 1, 1 + 20 ms down to node 2."""
    links = {(1, 0): 9.0, (0, 1): 2.0, (2, 0): 1.0, (0, 2): 1.0, (1, 2): 5.0}
    rates = {(1, 0): None, (0, 1): 1e9, (2, 0): None, (0, 2): 5e4, (1, 2): None}
    facts = NetworkFacts(
        {pair: PairFacts(links[pair] * MS, rates[pair]) for pair in links}, ("a", "b", "c"), costs=FREE
    )
    found = predict("star", 1000, facts)
    assert found.latency_s == pytest.approx(10 * MS)
    assert found.transfer_s == pytest.approx(20 * MS)


def test_workers_far_from_each_other_want_the_star():
    links = {(0, 1): 1.0, (0, 2): 1.0, (1, 2): 8.0}
    facts = NetworkFacts({pair: PairFacts(ms * MS, 1e8) for pair, ms in links.items()}, ("a", "b", "c"))
    assert choose(4, facts).collective == "star"


def test_workers_that_cannot_reach_each_other_leave_the_star_and_maybe_the_tree():
    facts = alike(4, 1 * MS)
    some = replace(facts, links={pair: link for pair, link in facts.links.items() if pair != (2, 3)})
    found = choose(4, some)
    assert set(found.predictions) == {"star", "tree"}  # 0 <- 1 <- (2, 3)
    assert (found.collective, found.why) == (
        "star",
        "all goes by node 0: nodes 2 and 3 cannot reach each other",
    )


def test_rank_0_is_within_reach_of_all():
    with pytest.raises(InternalError, match="between rank 0 and rank 2"):
        NetworkFacts({(0, 1): PairFacts(0.0)}, ("a", "b", "c"))


@pytest.mark.parametrize("facts", [(-1.0, None), (float("inf"), None), (float("nan"), 1.0), (0.0, 0.0)])
def test_links_that_cannot_be(facts):
    with pytest.raises(InternalError, match="no link has PairFacts"):
        PairFacts(*facts)


@pytest.mark.parametrize(
    ("round_trip_s", "bytes_per_s", "latency_s", "rate"),
    [
        # 2 x (1 ms + 65 us of processing); 26.7 ns of transfer and 1.3 ns of processing for every byte.
        (2.13e-3, 1 / (28e-9), 1 * MS, 1 / 26.7e-9),
        (184e-6, 685e6, 27e-6, None),  # loopback
        (100e-6, 0.0, 0.0, None),  # quicker than usual; no rate
    ],
)
def test_what_an_echo_costs_is_not_the_links(round_trip_s, bytes_per_s, latency_s, rate):
    found = PairFacts.measured(round_trip_s, bytes_per_s)
    assert found.one_way_latency_s == pytest.approx(latency_s, abs=1e-7)
    assert found.bytes_per_s == (rate and pytest.approx(rate))


def test_a_link_in_both_orders_has_two_directions():
    links = {(0, 1): PairFacts(1 * MS), (1, 0): PairFacts(7 * MS)}
    facts = NetworkFacts(links, ("a", "b"), costs=FREE)
    assert milliseconds("star", 4, facts) == pytest.approx(8)
    assert milliseconds("mesh", 4, facts) == pytest.approx(7)


def test_nodes_of_one_host_share_its_port():
    """Ranks 1 and 2 on one machine: 1 MB each leaves by the same port of 10 MB/s. Between them is no port."""
    far, near = PairFacts(1 * MS, 10e6), PairFacts(0.0)
    facts = NetworkFacts({(0, 1): far, (0, 2): far, (1, 2): near}, ("a", "b", "b"), costs=FREE)
    assert milliseconds("star", 10**6, facts) == pytest.approx(2 * (1 + 200))
    assert milliseconds("mesh", 10**6, facts) == pytest.approx(1 + 200)


def test_emulated_devices_share_cores_but_have_ports_of_their_own():
    facts = alike(4, 1 * MS, 10e6, costs=FREE)
    emulated = replace(facts, hosts=("here",) * 4)
    for collective in COLLECTIVES:
        assert predict(collective, 10**6, emulated) == predict(collective, 10**6, facts)
    busy = replace(emulated, costs=Costs())
    assert milliseconds("mesh", 4, busy) > milliseconds("mesh", 4, replace(facts, costs=Costs()))


def test_a_fast_port_serves_slow_links():
    """Rank 0's port has 100 MB/s, each worker's link 10: 4 MB arrive as fast as 1 MB comes over each link."""
    facts = alike(5, 0.0, 10e6, costs=FREE)
    quick = NetworkFacts(dict(facts.links) | {(0, 4): PairFacts(0.0, 100e6)}, facts.hosts, costs=FREE)
    assert milliseconds("star", 10**6, facts) == pytest.approx(2 * 400)
    assert milliseconds("star", 10**6, quick) == pytest.approx(2 * 100)


def test_an_unknown_rate_costs_nothing_but_its_port_may():
    links = {(0, 1): PairFacts(0.0, 10e6), (0, 2): PairFacts(0.0), (1, 2): PairFacts(0.0)}
    facts = NetworkFacts(links, ("a", "b", "c"), costs=FREE)
    assert milliseconds("star", 10**6, facts) == pytest.approx(2 * 200)
    assert milliseconds("star", 10**6, alike(3, 0.0, costs=FREE)) == 0


def test_two_nodes_always_exchange():
    for facts in (alike(2, 1 * MS, MBIT300), loopback(2), loopback(2, 1)):
        for nbytes in (4, 1 << 20):
            found = choose(nbytes, facts)
            assert (found.collective, found.why) == ("mesh", "two nodes exchange their parts")


def test_one_node_has_nothing_to_do():
    found = choose(1 << 20, NetworkFacts({}, ("a",)))
    assert found.why == "one node has nobody to send to"
    assert set(found.predictions.values()) == {CollectivePrediction()}


def test_a_near_tie_goes_to_the_simpler():
    """The star takes 2 ms, the mesh as long as its longest link."""

    def choice(direct_ms: float) -> ChosenCollective:
        links = {(0, 1): 1.0, (0, 2): 1.0, (1, 2): direct_ms}
        facts = {pair: PairFacts(ms * MS) for pair, ms in links.items()}
        return choose(4, NetworkFacts(facts, ("a", "b", "c"), costs=FREE))

    near, apart = choice(2 / (1 + TIE) + 0.01), choice(2 / (1 + TIE) - 0.01)
    assert (near.collective, apart.collective) == ("star", "mesh")
    assert near.why.endswith("; star is the simplest within 5% of the fastest")
    assert "simplest" not in apart.why


latencies = st.floats(0, 0.1)
rates = st.none() | st.floats(1e4, 1e10)


@st.composite
def networks(draw) -> NetworkFacts:
    size = draw(st.integers(2, 6))
    pairs = [(a, b) for a in range(size) for b in range(a) if b == 0 or draw(st.booleans())]
    pairs += [pair[::-1] for pair in pairs if draw(st.booleans())]
    links = {pair: PairFacts(draw(latencies), draw(rates)) for pair in pairs}
    hosts = tuple(draw(st.sampled_from("abcdef")) for _ in range(size))
    cores = draw(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 8)))
    return NetworkFacts(links, hosts, cores)


SLACK = 1 + 1e-9
nbytes_s = st.integers(0, 1 << 24)


@given(networks(), nbytes_s)
def test_the_choice_is_never_slower_than_the_star_nor_changes_a_bit(facts, nbytes):
    found = choose(nbytes, facts)
    assert found.collective in ("star", "mesh", "two-shot")
    assert found.predictions[found.collective].seconds <= found.predictions["star"].seconds * SLACK
    assert found.why


@given(networks(), st.sampled_from(COLLECTIVES), nbytes_s, nbytes_s)
def test_more_bytes_never_take_less(facts, collective, one, other):
    less, more = sorted((one, other))
    found = predict(collective, less, facts)
    if found is not None:
        assert found.seconds <= predict(collective, more, facts).seconds * SLACK


@given(networks(), st.sampled_from(COLLECTIVES), nbytes_s, st.data())
def test_a_slower_link_never_makes_it_faster(facts, collective, nbytes, data):
    pair = data.draw(st.sampled_from(sorted(facts.links)))
    link = facts.links[pair]
    rate = link.bytes_per_s and link.bytes_per_s / 2
    slower = PairFacts(link.one_way_latency_s + data.draw(latencies), rate)
    worse = replace(facts, links={**facts.links, pair: slower})
    found = predict(collective, nbytes, facts)
    if found is not None:
        assert found.seconds <= predict(collective, nbytes, worse).seconds * SLACK


@given(st.integers(2, 9), latencies, rates, nbytes_s)
def test_over_equal_links_the_ring_is_never_faster_than_two_shot(size, latency_s, rate, nbytes):
    facts = alike(size, latency_s, rate)
    assert milliseconds("ring", nbytes, facts) * SLACK >= milliseconds("two-shot", nbytes, facts)
