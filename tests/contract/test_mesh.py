"""What an endpoint that is linked with each of several others promises, besides what each of its links does."""

import threading
import time
from collections import Counter
from typing import Any

import pytest

from tests.contract.ranks import WAIT_S
from tpiedge.errors import ProtocolError
from tpiedge.transport.endpoint import Endpoint, EndpointClosed, Envelope, MalformedMessage, Unreachable
from tpiedge.wire.control import Shutdown
from tpiedge.wire.data import Hidden
from tpiedge.wire.limits import MAX_TENSOR_BYTES
from tpiedge.wire.tensors import TensorHeader

SIZE = 3
NAMES = [f"node-{rank}" for rank in range(SIZE)]


@pytest.fixture
def mesh(network: Any) -> list[Any]:
    """All links are up."""
    ends = list(network.mesh(SIZE))
    for rank, end in enumerate(ends):
        for lower in range(rank):
            end.send(Shutdown(0), (), NAMES[lower], WAIT_S)
            assert receive(ends[lower]).sender == NAMES[rank]
    return ends


def receive(end: Endpoint) -> Envelope:
    envelope = end.recv(WAIT_S)
    assert envelope is not None, "nothing arrived"
    return envelope


def test_everybody_hears_everybody_in_order(mesh: list[Any]) -> None:
    for number in range(50):
        for end in mesh:
            end.send(Shutdown(number), (), [name for name in NAMES if name != end.name], WAIT_S)
    for end in mesh:
        heard = [receive(end) for _ in range(50 * (SIZE - 1))]
        for name in NAMES:
            numbers = [one.message.epoch for one in heard if one.sender == name]  # type: ignore[union-attr]
            assert numbers == ([] if name == end.name else list(range(50)))
    assert all(set(end.peers) == set(NAMES) - {end.name} for end in mesh)


def test_who_sends_much_does_not_drown_others(mesh: list[Any]) -> None:
    count = 3000

    def flood() -> None:
        for _ in range(count):
            mesh[1].send(Shutdown(1), (), NAMES[0], WAIT_S)

    flooder = threading.Thread(target=flood)
    flooder.start()
    heard = Counter([receive(mesh[0]).sender])
    mesh[2].send(Shutdown(2), (), NAMES[0], WAIT_S)
    while not heard[NAMES[2]]:
        heard[receive(mesh[0]).sender] += 1
    assert heard[NAMES[1]] < count
    for _ in range(count - heard[NAMES[1]]):
        receive(mesh[0])
    flooder.join()


def test_sending_stops_at_the_first_that_is_not_there(mesh: list[Any]) -> None:
    with pytest.raises(Unreachable) as caught:
        mesh[1].send(Shutdown(4), (), (NAMES[0], "node-9", NAMES[2]), 0.05)
    assert caught.value.peer == "node-9"
    assert receive(mesh[0]).message == Shutdown(4)
    assert mesh[2].recv(0.05) is None


def test_sending_to_a_closed_peer_ends(mesh: list[Any]) -> None:
    """Whichever side has connected."""
    mesh[1].close()
    deadline = time.monotonic() + WAIT_S
    for end in (mesh[0], mesh[2]):
        with pytest.raises(Unreachable, match="node-1"):  # noqa: PT012
            while time.monotonic() < deadline:
                end.send(Shutdown(1), (), NAMES[1], 0.0)
                end.recv(0.01)
    mesh[0].send(Shutdown(2), (), NAMES[2], WAIT_S)
    assert receive(mesh[2]).message == Shutdown(2)


def test_a_malformed_message_names_its_sender_and_is_counted(mesh: list[Any]) -> None:
    for sender in (0, 2):
        mesh[sender].send_frame(bytes(range(256)), NAMES[1], WAIT_S)
        with pytest.raises(MalformedMessage, match=NAMES[sender]) as caught:
            receive(mesh[1])
        assert caught.value.peer == NAMES[sender]
    assert mesh[1].counters.malformed == 2
    mesh[0].send(Shutdown(3), (), NAMES[1], WAIT_S)
    assert receive(mesh[1]).message == Shutdown(3)


def test_what_is_too_large_is_refused_before_it_is_sent(mesh: list[Any]) -> None:
    header = TensorHeader("f32", (MAX_TENSOR_BYTES // 4 + 1,))
    with pytest.raises(ProtocolError, match=str(MAX_TENSOR_BYTES)):
        mesh[0].send(Hidden(1, 1, 0, header), (bytes(4),), NAMES[1])


def test_a_post_of_another_thread_is_sent_by_the_owner(mesh: list[Any]) -> None:
    for to in (0, 2):
        poster = threading.Thread(target=mesh[1].post, args=(Shutdown(5), NAMES[to]))
        poster.start()
        poster.join()
        mesh[1].recv(0.0)
        assert receive(mesh[to]).message == Shutdown(5)


def test_bytes_are_counted(mesh: list[Any]) -> None:
    sent, received = mesh[1].bytes_sent, [end.bytes_received for end in mesh]
    mesh[1].send(Hidden(1, 1, 0, TensorHeader("u8", (1000, 1))), (bytes(1000),), (NAMES[0], NAMES[2]), WAIT_S)
    for rank in (0, 2):
        receive(mesh[rank])
        assert mesh[rank].bytes_received - received[rank] == (mesh[1].bytes_sent - sent) / 2 > 1000


def test_closing_ends_a_wait_in_another_thread(mesh: list[Any]) -> None:
    for end in mesh:
        ended = threading.Event()

        def wait(end: Endpoint = end, ended: threading.Event = ended) -> None:
            with pytest.raises(EndpointClosed):
                end.recv(WAIT_S)
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not ended.wait(0.02)
        end.close()
        assert ended.wait(WAIT_S / 2)
        thread.join()
