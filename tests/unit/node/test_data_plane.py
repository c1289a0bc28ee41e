"""Nodes join their tensor plane over real sockets: who is linked with whom in the end, and how it ends otherwise."""

import dataclasses
import re
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import torch

from tests.contract.relay import Relay
from tests.unit.node.linked import EPOCH, Joining
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.local import LocalCommunicator
from tpiedge.collectives.peer_channel import node_name
from tpiedge.errors import Misconduct, PeerLost, ProtocolError
from tpiedge.node import data_plane
from tpiedge.planner.network import NetworkFacts
from tpiedge.wire.control import Connect, Listening
from tpiedge.wire.data import StepPlan
from tpiedge.wire.epochs import Probe
from tpiedge.wire.fields import CollectiveName

#: Nobody listens there.
DEAD = "tcp://127.0.0.1:9"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links between others than rank 0 that are not made soon never are. (Those that can be need some of it.)"""
    monkeypatch.setattr(data_plane, "_LINK_S", 3.0)


def elsewhere(rank: int, endpoint: str = DEAD) -> Callable[[Listening], Listening]:
    """As if no other node could reach `rank`."""
    return lambda said: dataclasses.replace(said, endpoint=endpoint) if said.rank == rank else said


def summed(joining: Joining, collective: CollectiveName) -> list[object]:
    """What each rank has of an all-reduce of the ranks' numbers."""

    def work(rank: int) -> object:
        communicator = joining.planes[rank].communicator
        if rank == 0:
            plan = StepPlan(EPOCH, 1, (), 1, 1, collective=collective, bulk_collective=collective)
            communicator.announce(plan)
        else:
            communicator.next_plan()
        return communicator.all_reduce(torch.full((2, 96), float(rank + 1)), Tag(1, 0, 0))[0, 0].item()

    return joining.all(work)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_are_linked_with_all(size: int) -> None:
    with Joining(size) as joining:
        planes = joining.all()
        facts = planes[0].facts
        assert [plane.facts for plane in planes[1:]] == [None] * (size - 1)
        if size == 2:
            assert facts is None, "there is nothing to choose"
        else:
            assert isinstance(facts, NetworkFacts)
            pairs = [(low, high) for high in range(size) for low in range(high)]
            assert all(0 <= facts.link(*pair).one_way_latency_s < 0.5 for pair in pairs)
            assert len(set(facts.hosts)) == 1, "all on this machine"
        assert summed(joining, "mesh") == [size * (size + 1) / 2] * size
        assert joining.events == []


def test_all_are_linked_over_ipv6() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("system: this computer has no IPv6 loopback address")
    with Joining(3, host="[::1]") as joining:
        facts = joining.all()[0].facts
        assert facts.link(1, 2) is not None
        assert summed(joining, "two-shot") == [6.0] * 3


def test_by_the_star_alone_only_rank_0_listens_and_nothing_is_measured() -> None:
    with Joining(3, "star") as joining:
        planes = joining.all()
        assert [plane.facts for plane in planes] == [None] * 3
        assert planes[1].endpoint.address == joining.planes[0].endpoint.address
        assert summed(joining, "star") == [6.0] * 3


def test_a_node_alone_has_no_socket() -> None:
    with Joining(1) as joining:
        plane = joining.join(0)
        assert plane.traffic == data_plane.DataPlaneTraffic()
        assert isinstance(plane.communicator, LocalCommunicator)
        assert plane.endpoint is None


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("endpoint", [DEAD, "tcp://[fe80::1%nowhere]:5"], ids=["dead", "none here"])
def test_nodes_that_cannot_reach_each_other_sum_by_the_star(endpoint: str) -> None:
    with Joining(3, tamper=elsewhere(1, endpoint)) as joining:
        planes = joining.all()
        facts = planes[0].facts
        assert facts.link(1, 2) is None
        assert facts.link(0, 1) is not None
        assert facts.link(0, 2) is not None
        assert summed(joining, "star") == [6.0] * 3


@pytest.mark.usefixtures("impatient")
def test_a_link_that_is_up_is_kept_though_another_took_all_the_time() -> None:
    with Joining(4, tamper=elsewhere(1)) as joining:
        facts = joining.all()[0].facts
        assert facts.link(1, 3) is None
        assert facts.link(2, 3) is not None


@pytest.mark.usefixtures("impatient")
def test_a_node_without_all_its_links_takes_no_other_way_than_the_star() -> None:
    with Joining(3, tamper=elsewhere(1)) as joining:
        joining.all()
        joining.planes[0].communicator.announce(StepPlan(EPOCH, 1, (), 1, 1, bulk_collective="mesh"))
        joining.planes[1].communicator.next_plan()
        with pytest.raises(ProtocolError, match="not all nodes are linked"):
            joining.planes[2].communicator.next_plan()


def test_rank_0_that_cannot_be_reached_is_lost_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_plane, "_RANK_0_LINK_S", 0.5)
    with Joining(2, tamper=elsewhere(0)) as joining:
        errors = joining.all(lambda rank: joining.join(1) if rank else joining.join(0).endpoint.address)
        assert isinstance(errors[1], PeerLost)
        assert str(errors[1]) == (
            "node 0 was lost during connecting: its port 9 for data cannot be reached: is it open in the firewall?"
        )


def test_rank_0_is_waited_for_longer_than_a_link_that_can_be_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that loses packets may take its first attempts; without the star there is no answer."""
    monkeypatch.setattr(data_plane, "_LINK_S", 0.5)
    monkeypatch.setattr(data_plane, "_RANK_0_LINK_S", 20.0)
    with ExitStack() as relays:

        def late(said: Listening) -> Listening:
            relay = relays.enter_context(Relay(int(said.endpoint.rpartition(":")[2]), late_s=1.0))
            return dataclasses.replace(said, endpoint=relay.address)

        with Joining(2, tamper=late) as joining:
            joining.all()
            assert summed(joining, "star") == [3.0] * 2


def test_a_loss_ends_the_wait_for_a_link_to_rank_0() -> None:
    with Joining(2, tamper=elsewhere(0)) as joining:
        threading.Timer(0.3, joining.alive[1].lose, (0, "killed by SIGKILL")).start()
        errors = joining.all(lambda rank: joining.join(1) if rank else joining.join(0).endpoint.address)
        assert str(errors[1]) == "node 0 was lost during connecting: killed by SIGKILL"


@pytest.mark.parametrize("named", [(), (1,), (0,), (0, 1, 2)])
def test_addresses_of_others_than_were_expected_are_refused(named: tuple[int, ...]) -> None:
    with Joining(3) as joining:
        joining.connects[2].put(Connect(EPOCH, tuple((rank, DEAD) for rank in named)))
        with pytest.raises(ProtocolError, match=r"the master sent the addresses of .*, not of \[0, 1\]"):
            joining.join(2)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "endpoint",
    ["ipc:///tmp/x.sock", "inproc://zeromq.zap.01", "tcp://example.org:80", "tcp://10.0.0.1:0", "tcp://*:80"],
)
def test_what_the_master_calls_an_address_and_is_none_is_not_dialled(rank: int, endpoint: str) -> None:
    with Joining(3) as joining:
        said = [(0, DEAD), (1, DEAD)]
        said[rank] = (rank, endpoint)
        joining.connects[2].put(Connect(EPOCH, tuple(said)))
        words = f"the master says that node {rank} listens at '{re.escape(endpoint)}', which is no address"
        with pytest.raises(ProtocolError, match=words):
            joining.join(2)


def test_whoever_connects_late_is_waited_for() -> None:
    """Its start is no latency of a link, and a hub that is asked for it before waits."""
    with Joining(3) as joining:
        joining.before[2].clear()
        threading.Timer(0.7, joining.before[2].set).start()
        facts = joining.all()[0].facts
        assert all(facts.link(low, high).one_way_latency_s < 0.3 for low, high in ((0, 1), (0, 2), (1, 2)))
        assert summed(joining, "mesh") == [6.0] * 3


def test_a_loss_ends_the_wait_for_whoever_has_not_come() -> None:
    with Joining(3) as joining:

        def work(rank: int) -> object:
            if rank == 2:
                for alive in joining.alive:
                    alive.lose(2, "killed by SIGKILL")
                return None
            return joining.join(rank)

        errors = joining.all(work)
        assert str(errors[0]) == "node 2 was lost during sending Probe to it: killed by SIGKILL"
        # Rank 1 hears of it while it connects, where that takes long.
        waits = "(connecting|its turn in the survey of the links)"
        assert re.fullmatch(rf"node 2 was lost during {waits}: killed by SIGKILL", str(errors[1]))


def test_a_link_between_workers_that_breaks_is_a_loss_though_the_master_hears_both() -> None:
    with Joining(3) as joining:
        joining.all()
        plan = StepPlan(EPOCH, 1, (), 1, 1, collective="mesh", bulk_collective="mesh")
        joining.planes[0].communicator.announce(plan)
        last = joining.planes[2].communicator
        last.next_plan()
        joining.close(1)
        with pytest.raises(PeerLost) as caught:
            last.all_reduce(torch.ones(2, 96), Tag(1, 0, 0))
        assert (caught.value.rank, caught.value.cause) == (1, "its connection broke")


def test_such_a_link_is_missed_before_anybody_needs_it() -> None:
    with Joining(3) as joining:
        joining.all()
        joining.close(1)
        with pytest.raises(PeerLost) as caught:
            joining.planes[2].communicator.next_plan()
        assert (caught.value.rank, caught.value.cause) == (1, "its connection broke")


@pytest.mark.parametrize(
    ("bulk", "lost", "cause"),
    [("star", 0, "the test said so"), ("mesh", 1, "its connection broke")],
)
def test_between_steps_it_is_missed_where_steps_need_it(bulk: CollectiveName, lost: int, cause: str) -> None:
    with Joining(3) as joining:
        joining.all()
        joining.planes[0].communicator.announce(StepPlan(EPOCH, 1, (), 1, 1, bulk_collective=bulk))
        last = joining.planes[2].communicator
        last.next_plan()
        joining.close(1)
        told = threading.Timer(1.0, joining.alive[2].lose, (0, "the test said so"))
        if bulk == "star":  # nothing else ends the wait
            told.start()
        with pytest.raises(PeerLost) as caught:
            last.next_plan()
        if bulk == "star":
            told.join()
        assert (caught.value.rank, caught.value.cause) == (lost, cause)


def test_what_came_too_late_and_what_no_honest_node_sends_is_counted() -> None:
    with Joining(3) as joining:
        first, second, third = joining.all()
        for step in (1, 2):
            first.communicator.announce(StepPlan(EPOCH, step, (), 1, 1))
            third.communicator.next_plan()
        second.endpoint.send(Probe(EPOCH - 1, 1, 0, b""), to=node_name(2), timeout_s=20.0)
        second.endpoint.send_frame(b"\x91" * 40, node_name(2), 20.0)
        with pytest.raises(Misconduct):
            third.communicator.next_plan()
        traffic = third.traffic
        assert (traffic.dropped, traffic.refused) == (1, 1)
        assert traffic.sent_bytes == third.endpoint.bytes_sent > 0
        assert traffic.received_bytes == third.endpoint.bytes_received > 0
