"""What an endpoint that is linked with each of several others promises, besides what each of its links does."""

import threading
from collections import Counter
from typing import Any

import pytest

from tests.contract.ranks import WAIT_S
from tpiedge.transport.endpoint import Endpoint, EndpointClosed, Envelope
from tpiedge.wire.control import Shutdown

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
