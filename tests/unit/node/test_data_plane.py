import re
import socket
import threading
from collections.abc import Callable
from unittest.mock import Mock, call

import pytest
import torch
from msgspec import structs

from tests.unit.node.linked import EPOCH, Joining
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.peer_channel import node_name
from tpiedge.errors import Misconduct, PeerLost, ProtocolError
from tpiedge.node import data_plane
from tpiedge.node.node import Node
from tpiedge.planner.network import NetworkFacts
from tpiedge.wire.control import Breach, Connect, Failed, Listening
from tpiedge.wire.data import StepPlan
from tpiedge.wire.epochs import Probe
from tpiedge.wire.fields import CollectiveName

#: No node listens there.
DEAD = "tcp://127.0.0.1:9"


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_plane, "_LINK_S", 3.0)


def elsewhere(rank: int, endpoint: str = DEAD) -> Callable[[Listening], Listening]:
    return lambda said: structs.replace(said, endpoint=endpoint) if said.rank == rank else said


def summed(joining: Joining, collective: CollectiveName) -> list[object]:
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
def test_all_nodes_are_linked_pairwise(size: int) -> None:
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


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("endpoint", [DEAD, "tcp://[fe80::1%nowhere]:5"], ids=["dead", "none here"])
def test_unlinked_workers_sum_by_the_star(endpoint: str) -> None:
    with Joining(3, tamper=elsewhere(1, endpoint)) as joining:
        planes = joining.all()
        facts = planes[0].facts
        assert facts.link(1, 2) is None
        assert facts.link(0, 1) is not None
        assert facts.link(0, 2) is not None
        assert summed(joining, "star") == [6.0] * 3


def test_unreachable_rank_0_error_names_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_plane, "_RANK_0_LINK_S", 0.5)
    with Joining(2, tamper=elsewhere(0)) as joining:
        errors = joining.all(lambda rank: joining.join(1) if rank else joining.join(0).endpoint.address)
        assert isinstance(errors[1], PeerLost)
        assert str(errors[1]) == (
            "node 0 was lost during connecting: its port 9 for data cannot be reached: is it open in the firewall?"
        )


@pytest.mark.parametrize("named", [(), (1,), (0,), (0, 1, 2)])
def test_addresses_of_unexpected_ranks_are_refused(named: tuple[int, ...]) -> None:
    with Joining(3) as joining:
        joining.connects[2].put(Connect(EPOCH, tuple((rank, DEAD) for rank in named)))
        with pytest.raises(ProtocolError, match=r"the master sent the addresses of .*, not of \[0, 1\]"):
            joining.join(2)


def test_lost_peer_ends_waits_while_connecting() -> None:
    with Joining(3) as joining:

        def work(rank: int) -> object:
            if rank == 2:
                for alive in joining.alive:
                    alive.mark_lost(2, "killed by SIGKILL")
                return None
            return joining.join(rank)

        errors = joining.all(work)
        # Each hears of it in the first wait, where starting the other one takes long, or in the next.
        waits = (
            "(the start of node 1|sending Probe to it)",
            "(connecting|its turn in the survey of the links)",
        )
        for error, wait in zip(errors, waits, strict=False):
            assert re.fullmatch(rf"node 2 was lost during {wait}: killed by SIGKILL", str(error))


def test_broken_worker_link_is_a_loss() -> None:
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


@pytest.mark.parametrize(
    ("bulk", "lost", "cause"),
    [("star", 0, "the test said so"), ("mesh", 1, "its connection broke")],
)
def test_only_mesh_notices_link_broken_between_steps(bulk: CollectiveName, lost: int, cause: str) -> None:
    with Joining(3) as joining:
        joining.all()
        joining.planes[0].communicator.announce(StepPlan(EPOCH, 1, (), 1, 1, bulk_collective=bulk))
        last = joining.planes[2].communicator
        last.next_plan()
        joining.close(1)
        told = threading.Timer(1.0, joining.alive[2].mark_lost, (0, "the test said so"))
        if bulk == "star":  # nothing else ends the wait
            told.start()
        with pytest.raises(PeerLost) as caught:
            last.next_plan()
        if bulk == "star":
            told.join()
        assert (caught.value.rank, caught.value.cause) == (lost, cause)


def test_stale_and_malformed_frames_are_counted() -> None:
    with Joining(3) as joining:
        first, second, third = joining.all()
        for step in (1, 2):
            first.communicator.announce(StepPlan(EPOCH, step, (), 1, 1))
            third.communicator.next_plan()
        second.endpoint.send(Probe(EPOCH - 1, 1, 0), to=node_name(2), timeout_s=20.0)
        second.endpoint.send_frame(b"\x91" * 40, node_name(2), 20.0)
        with pytest.raises(Misconduct):
            third.communicator.next_plan()
        assert third.traffic == (
            third.endpoint.counters.bytes_sent,
            third.endpoint.counters.bytes_received,
            1,
            1,
        )
        assert min(third.traffic) > 0


@pytest.mark.fault("W2", "rank 0 reports the node that the collective names, and no other rank does")
def test_breach_of_a_peer_is_reported_by_rank_0_only() -> None:
    link, failed = Mock(), [call(Failed(7, rank, "", "Misconduct", "a NaN")) for rank in (0, 2)]
    for rank in (0, 2):
        Node.report(Mock(_bootstrap=Mock(rank=rank), _epoch=7, link=link), Misconduct(1, "a NaN"))
    assert link.post.mock_calls == [call(Breach(7, 0, 1, "a NaN")), *failed]
