from dataclasses import replace
from itertools import combinations
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.planner import network
from tpiedge.wire.fields import CollectiveChoice, CollectiveName

MS = 1e-3
FREE = network.Costs(0.0, 0.0, 0.0, 0.0)
COLLECTIVES = get_args(CollectiveName)
MBIT300 = 300e6 / 8


def alike(size: int, latency_s: float, rate: float | None = None, **more) -> network.NetworkFacts:
    links = {pair: network.PairFacts(latency_s, rate) for pair in combinations(range(size), 2)}
    return network.NetworkFacts(links, tuple(range(size)), **more)


def milliseconds(collective: CollectiveName, nbytes: int, facts: network.NetworkFacts) -> float:
    found = network.predict(collective, nbytes, facts)
    assert found is not None
    return found / MS


# The paper's eight devices: 1 ms, 300 Mbit/s. 8192 bytes take 0.218453 ms, a MiB 27.9620 ms.
@pytest.mark.parametrize(
    ("collective", "decode_ms", "prefill_ms"),
    [
        ("star", 2 + 14 * 0.218453, 2 + 14 * 27.9620),
        ("mesh", 1 + 7 * 0.218453, 1 + 7 * 27.9620),
        ("two-shot", 2 + 14 / 8 * 0.218453, 2 + 14 / 8 * 27.9620),
    ],
)
def test_predicted_times_match_the_papers_testbed(collective, decode_ms, prefill_ms):
    facts = alike(8, 1 * MS, MBIT300, costs=FREE)
    assert milliseconds(collective, 8192, facts) == pytest.approx(decode_ms, rel=1e-5)
    assert milliseconds(collective, 1 << 20, facts) == pytest.approx(prefill_ms, rel=1e-5)


def test_predicted_processing_time_matches_hand_calculation():
    """Message of 8000 bytes, each end: 10 + 8 = 18 us, stepwise 30 + 8 = 38, with slices of 1000 bytes 31. Star: 1
    sent, 7 received, and back; mesh: 7 each; two-shot: twice 7 each."""
    facts = alike(8, 0.0, costs=network.Costs(message_s=10e-6, byte_s=1e-9, wake_s=5e-6, stepwise_s=30e-6))
    us = {name: round(network.predict(name, 8000, facts) * 1e6) for name in COLLECTIVES}
    assert us == {"star": 2 * (8 * 18 + 5), "mesh": 14 * 18 + 5, "two-shot": 2 * (14 * 31 + 5)}


def test_papers_testbed_decodes_by_mesh_and_prefills_by_two_shot():
    facts = alike(8, 1 * MS, MBIT300)
    decode, prefill = network.choose(8192, facts), network.choose(1 << 20, facts)
    assert (decode.collective, prefill.collective) == ("mesh", "two-shot")
    assert decode.why == "predicted for 8.2 kB: star 5.5 ms, mesh 2.9 ms, two-shot 4.4 ms"
    assert prefill.why == "predicted for 1.0 MB: star 405 ms, mesh 207 ms, two-shot 55 ms"


def loopback(size: int, cores: int = 2) -> network.NetworkFacts:
    links = {pair: network.PairFacts(0.0) for pair in combinations(range(size), 2)}
    return network.NetworkFacts(links, ("here",) * size, {"here": cores})


def test_nodes_of_one_host_share_its_cores():
    """Four nodes, 0 bytes, 20 us a message: up and down 3 are sent and 3 received on 2 cores, in a mesh 12 each. The
    collective with fewer messages wins."""
    facts = loopback(4)
    assert milliseconds("star", 0, facts) == pytest.approx(2 * (0.025 + 0.020 * (1.5 + 3)))
    assert milliseconds("mesh", 0, facts) == pytest.approx(0.025 + 0.020 * (6 + 6))
    assert network.choose(4, facts).collective == "star"
    # With many cores the mesh is the one hop that it should be: 3 sent, 3 received.
    assert milliseconds("mesh", 0, loopback(4, 64)) == pytest.approx(0.025 + 0.020 * 6)
    assert network.choose(4, loopback(4, 64)).collective == "mesh"


def test_unlinked_workers_leave_only_the_star():
    facts = alike(4, 1 * MS)
    some = replace(facts, links={pair: link for pair, link in facts.links.items() if pair != (2, 3)})
    found = network.choose(4, some)
    assert [network.predict(name, 4, some) for name in COLLECTIVES[1:]] == [None, None]
    assert (found.collective, found.why) == (
        "star",
        "all traffic goes through node 0: nodes 2 and 3 cannot reach each other",
    )


@pytest.mark.parametrize(
    ("round_trip_s", "bytes_per_s", "latency_s", "rate"),
    [
        # 2 x (1 ms + 65 us of processing); 26.7 ns of transfer and 1.3 ns of processing for every byte.
        (2.13e-3, 1 / (28e-9), 1 * MS, 1 / 26.7e-9),
        (184e-6, 685e6, 27e-6, None),  # loopback
        (100e-6, 0.0, 0.0, None),  # quicker than usual; no rate
    ],
)
def test_echo_processing_is_subtracted_from_link_facts(round_trip_s, bytes_per_s, latency_s, rate):
    found = network.PairFacts.measured(round_trip_s, bytes_per_s)
    assert found.one_way_latency_s == pytest.approx(latency_s, abs=1e-7)
    assert found.bytes_per_s == (rate and pytest.approx(rate))


def test_nodes_of_one_host_share_its_port():
    """Ranks 1 and 2 on one machine: 1 MB each leaves by the same port of 10 MB/s. Between them is no port."""
    far, near = network.PairFacts(1 * MS, 10e6), network.PairFacts(0.0)
    facts = network.NetworkFacts({(0, 1): far, (0, 2): far, (1, 2): near}, ("a", "b", "b"), costs=FREE)
    assert milliseconds("star", 10**6, facts) == pytest.approx(2 * (1 + 200))
    assert milliseconds("mesh", 10**6, facts) == pytest.approx(1 + 200)


def test_a_near_tie_goes_to_the_simpler():
    """The star takes 2 ms, the mesh as long as its longest link."""

    def choice(direct_ms: float) -> network.ChosenCollective:
        links = {(0, 1): 1.0, (0, 2): 1.0, (1, 2): direct_ms}
        facts = {pair: network.PairFacts(ms * MS) for pair, ms in links.items()}
        return network.choose(4, network.NetworkFacts(facts, ("a", "b", "c"), costs=FREE))

    near, apart = choice(2 / (1 + network.TIE) + 0.01), choice(2 / (1 + network.TIE) - 0.01)
    assert (near.collective, apart.collective) == ("star", "mesh")
    assert near.why.endswith("; star is the simplest within 5% of the fastest")
    assert "simplest" not in apart.why


latencies = st.floats(0, 0.1)
rates = st.none() | st.floats(1e4, 1e10)


@st.composite
def networks(draw) -> network.NetworkFacts:
    size = draw(st.integers(2, 6))
    pairs = [(a, b) for a in range(size) for b in range(a) if b == 0 or draw(st.booleans())]
    pairs += [pair[::-1] for pair in pairs if draw(st.booleans())]
    links = {pair: network.PairFacts(draw(latencies), draw(rates)) for pair in pairs}
    hosts = tuple(draw(st.sampled_from("abcdef")) for _ in range(size))
    cores = draw(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 8)))
    return network.NetworkFacts(links, hosts, cores)


SLACK = 1 + 1e-9
nbytes_s = st.integers(0, 1 << 24)


@given(networks(), nbytes_s)
def test_chosen_collective_is_never_slower_than_star(facts, nbytes):
    found = network.choose(nbytes, facts)
    assert found.collective in ("star", "mesh", "two-shot")
    assert network.predict(found.collective, nbytes, facts) <= network.predict("star", nbytes, facts) * SLACK
    assert found.why


@given(networks(), st.sampled_from(COLLECTIVES), nbytes_s, nbytes_s)
def test_more_bytes_never_take_less(facts, collective, one, other):
    less, more = sorted((one, other))
    found = network.predict(collective, less, facts)
    if found is not None:
        assert found <= network.predict(collective, more, facts) * SLACK


def wifi(costs: network.Costs = FREE) -> network.NetworkFacts:
    """Two machines on a cable (0.3 ms, 100 MB/s), a third on slow Wi-Fi (4 ms, 5 MB/s) to both."""
    cable, air = network.PairFacts(0.3 * MS, 100e6), network.PairFacts(4 * MS, 5e6)
    return network.NetworkFacts({(0, 1): cable, (0, 2): air, (1, 2): air}, ("a", "b", "c"), costs=costs)


def test_slow_worker_link_determines_predicted_time():
    """1 MB: by star 200 ms each way over the air; in a mesh 2 MB leave the slow port; two-shot takes 2/3 MB, twice."""
    assert milliseconds("star", 10**6, wifi()) == pytest.approx(2 * (4 + 200))
    assert milliseconds("mesh", 10**6, wifi()) == pytest.approx(4 + 400)
    assert milliseconds("two-shot", 10**6, wifi()) == pytest.approx(2 * (4 + 400 / 3))
    assert [network.choose(nbytes, wifi(network.Costs())).collective for nbytes in (8000, 10**6)] == [
        "mesh",
        "two-shot",
    ]


@given(st.integers(1, 128), st.sampled_from(get_args(CollectiveChoice)))
def test_links_are_unique_and_lead_to_listening_nodes(size, collective):
    links = [(other, rank) for rank in range(size) for other in network.connects_to(rank, size, collective)]
    assert len(set(links)) == len(links)
    assert {low for low, _ in links} == {
        rank for rank in range(size) if network.listens(rank, size, collective)
    }
    if network.are_linked(size, collective):
        assert set(links) == {(low, high) for high in range(size) for low in range(high)}
    else:
        assert set(links) == {(0, rank) for rank in range(1, size)}


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", range(2, 9))
def test_collective_phases_spread_every_part_to_all_nodes(collective, size):
    """Slices apart: what a message carries includes all that its sender has heard by then."""
    heard = {rank: {rank} for rank in range(size)}
    for phase in network.phases(collective, size):
        before = {rank: set(known) for rank, known in heard.items()}
        for hop in phase:
            assert hop.source != hop.target
            heard[hop.target] |= before[hop.source]
    assert all(known == set(range(size)) for known in heard.values())
