"""Messages that are refused, peers that are lost, endpoints that close: as without the native call."""

import time
from typing import Any

import pytest
import torch

from tests.contract.fast_link.cluster import SHAPE, WAIT_S, assert_total, every_way, needs_native, total
from tpiedge.errors import Misconduct, PeerLost, ProtocolError
from tpiedge.transport.endpoint import EndpointClosed
from tpiedge.transport.native_reducer import DONE
from tpiedge.wire.codec import encode
from tpiedge.wire.data import Partial, Reduced
from tpiedge.wire.tensors import TensorHeader

pytestmark = needs_native


@every_way
def test_a_message_of_another_epoch_is_dropped(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    for rank, to in ((1, 0), (0, 1)):
        cluster.send(rank, to, 0, epoch=0)
    assert_total(cluster.reduce())
    assert [cluster.ranks[rank].dropped for rank in (0, 1)] == [1, 1]


@every_way
def test_who_speaks_for_another_is_named(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    cluster.send(1, 0, 0, sender=0)
    with pytest.raises(ProtocolError, match="node 1 speaks for another"):
        cluster.start(0).result(WAIT_S)


@every_way
def test_who_sends_another_shape_is_named(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    cluster.send(1, 0, 0, given=torch.zeros(1, 66))
    with pytest.raises(Misconduct, match=r"node 1 sent .* where .*f32"):
        cluster.start(0).result(WAIT_S)


@every_way
@pytest.mark.parametrize("rank", [0, 1])
def test_a_message_of_two_frames_is_malformed(make: Any, way: str, size: int, rank: int) -> None:
    cluster = make(way, size).meet()
    sender, receiver = cluster.end(1 - rank, rank), cluster.end(rank, 1 - rank)
    header = TensorHeader("f32", SHAPE)
    message: Any = Partial(1, 1, 0, 0, 0, 1 - rank, header)
    if rank and way == "star":
        message = Reduced(1, 1, 0, 0, 0, header)
    route = [sender._routes["node-1"]] if rank else []
    sender._socket.send_multipart([*route, encode(message) + bytes(header.nbytes), b"", b"more"])
    with pytest.raises(Misconduct, match="more than one frame"):
        cluster.start(rank).result(WAIT_S)
    assert receiver.counters.malformed == 1
    assert receiver.recv(0.0) is None


@every_way
def test_a_peer_revoked_in_mid_run_is_not_heard(make: Any, way: str, size: int) -> None:
    cluster = make(way, size, "f32", 1.0).meet()
    waiting = cluster.start(0, 3)
    hub = cluster.ends(0)[0]
    hub.admission.revoke("node-1")
    for rank in range(1, size):
        cluster.send(rank, 0, 3)
    with pytest.raises(PeerLost, match="node 1"):
        waiting.result(WAIT_S)
    assert hub.counters.revoked == 1


@pytest.mark.parametrize("way", ["pair", "mesh"])
def test_a_list_that_changes_during_the_call_stops_it(make: Any, way: str) -> None:
    cluster = make(way, 2).meet()
    changes = cluster.ends(0)[0].admission.changes
    while cluster.outcomes(0) != [DONE]:
        cluster.reduce()
    waiting = cluster.start(0, 1)
    # The call may have begun or not: either way it must not take the message for good without a look at the list.
    changes.value += 1
    cluster.send(1, 0, 1)
    assert torch.equal(waiting.result(WAIT_S), total(2, 1))
    assert DONE not in cluster.outcomes(0)


@every_way
def test_a_connection_made_anew_ends_the_wait(make: Any, way: str, size: int) -> None:
    cluster = make(way, size).meet()
    spoke = cluster.end(1, 0)
    spoke._socket.disconnect(spoke.address)
    spoke._socket.connect(spoke.address)
    waiting = cluster.start(0, 1)
    deadline = time.monotonic() + WAIT_S
    # A socket works on its connections while somebody calls it.
    while not waiting.done() and time.monotonic() < deadline:
        cluster.endpoints[1].recv(0.01)
    with pytest.raises(PeerLost, match="made anew"):
        waiting.result(0)


@every_way
def test_a_peer_that_is_gone_is_lost(make: Any, way: str, size: int) -> None:
    cluster = make(way, size, "f32", 0.5).meet()
    cluster.endpoints[1].close()
    for rank in [rank for rank in range(size) if rank != 1]:
        expected = "node 0" if way == "star" and rank else "node 1"
        with pytest.raises(PeerLost, match=expected):
            cluster.start(rank, 1).result(WAIT_S)


@every_way
@pytest.mark.parametrize("rank", [0, 1])
def test_closing_ends_the_wait(make: Any, way: str, size: int, rank: int) -> None:
    cluster = make(way, size).meet()
    waiting = cluster.start(rank, 1)
    cluster.endpoints[rank].close()
    with pytest.raises(EndpointClosed):
        waiting.result(WAIT_S)


def test_closing_one_end_alone_ends_the_wait(make: Any) -> None:
    """Whoever made the links may close them one by one."""
    cluster = make("mesh", 3).meet()
    waiting = cluster.start(1, 1)
    for end in cluster.ends(1):
        end.close()
    with pytest.raises(EndpointClosed):
        waiting.result(WAIT_S)
