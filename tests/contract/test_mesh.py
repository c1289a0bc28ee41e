import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.networks import linked
from tests.contract.test_endpoint import WAIT_S, receive
from tpiedge.transport.endpoint import EndpointClosed
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.control import Shutdown

SIZE = 3
NAMES = [f"node-{rank}" for rank in range(SIZE)]


@pytest.fixture
def mesh(network: Any) -> list[Any]:
    ends = list(network.mesh(SIZE))
    for rank, end in enumerate(ends):
        for lower in range(rank):
            end.send(Shutdown(0), None, NAMES[lower], WAIT_S)
            assert receive(ends[lower]).sender == NAMES[rank]
    return ends


def test_everybody_hears_everybody_in_order(mesh: list[Any]) -> None:
    for number in range(50):
        for end in mesh:
            end.send(Shutdown(number), None, [name for name in NAMES if name != end.name], WAIT_S)
    for end in mesh:
        heard = [receive(end) for _ in range(50 * (SIZE - 1))]
        for name in NAMES:
            numbers = [one.message.epoch for one in heard if one.sender == name]  # type: ignore[union-attr]
            assert numbers == ([] if name == end.name else list(range(50)))


def test_who_sends_much_does_not_drown_others(mesh: list[Any]) -> None:
    count = 3000

    def flood() -> None:
        for _ in range(count):
            mesh[1].send(Shutdown(1), None, NAMES[0], WAIT_S)

    flooder = threading.Thread(target=flood)
    flooder.start()
    heard = Counter([receive(mesh[0]).sender])
    mesh[2].send(Shutdown(2), None, NAMES[0], WAIT_S)
    while not heard[NAMES[2]]:
        heard[receive(mesh[0]).sender] += 1
    assert heard[NAMES[1]] < count
    for _ in range(count - heard[NAMES[1]]):
        receive(mesh[0])
    flooder.join()


def test_closing_ends_a_wait_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, wait = threading.Event(), ZmqHub._wait_to_send
    monkeypatch.setattr(ZmqHub, "_wait_to_send", lambda *given: waits.set() or wait(*given))
    with linked("zeromq", monkeypatch) as network, ThreadPoolExecutor(1) as threads:
        end = network.mesh(SIZE)[0]
        sending = threads.submit(end.send, Shutdown(1), None, "nobody", WAIT_S)
        assert waits.wait(WAIT_S)
        end.close()
        with pytest.raises(EndpointClosed):
            sending.result(WAIT_S / 2)
