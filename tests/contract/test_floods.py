import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import zmq

from tests.contract.hub_process import HubProcess
from tests.contract.networks import Network
from tests.contract.test_endpoint import receive
from tpiedge.errors import PeerError
from tpiedge.transport import endpoint
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.units import KIB, MIB
from tpiedge.wire.control import Shutdown

WAIT_S = 20.0
SMALL = endpoint.Plane(header_limit=1000, tensor_limit=64 * KIB, queue_length=16, waiting_limit=MIB)


@pytest.fixture
def network() -> Iterator[Network]:
    with closing(Network("zeromq")) as made:
        yield made


@pytest.mark.parametrize("plane", [endpoint.TENSOR, endpoint.CONTROL], ids=["tensor", "control"])
def test_the_largest_frames_are_bounded_in_memory_and_others_are_served(plane: endpoint.Plane) -> None:
    with HubProcess(plane) as hub, hub.spoke("flooder") as flooder, hub.spoke("other") as other:
        flooder.send(Shutdown(1), timeout_s=WAIT_S)
        before = hub.rss
        sent = flood(flooder, bytes(plane.frame_limit), 600 * MIB // plane.frame_limit)
        hub.wait_until(lambda: hub.rss - before > plane.backlog_limit // 2)
        other.send(Shutdown(7), timeout_s=WAIT_S)
        hub.serve()
        assert receive(other).message == Shutdown(7)
        assert sent * plane.frame_limit > 400 * MIB
        assert hub.peak_rss - before < 300 * MIB


def flood(spoke: ZmqSpoke, frame: bytes, count: int) -> int:
    for number in range(count):
        try:
            spoke.socket.send(frame, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return number
    return count


def test_a_message_without_end_ends_the_connection(network, caplog):
    hub, flooder, other = network.hub(SMALL), network.spoke(1, SMALL), network.spoke(2, SMALL)
    for spoke in (flooder, other):
        spoke.send(Shutdown(1), timeout_s=WAIT_S)
        receive(hub)
    parts = 2 * SMALL.backlog_limit // SMALL.frame_limit
    with caplog.at_level(logging.WARNING):
        flooder.socket.send_multipart([bytes(SMALL.frame_limit)] * parts)
        wait_for(lambda: "cut a connection off" in caplog.text)
    other.send(Shutdown(7))
    *heard, broken = until_reset(hub, flooder)
    assert "node-1 broke and was made anew: it had sent more than" in str(broken)
    wait_for(lambda: endpoint.Envelope("node-2", Shutdown(7)) in heard or heard.append(hub.recv(0.01)))


def until_reset(hub: ZmqHub, spoke: ZmqSpoke) -> Iterator[endpoint.Envelope | PeerError | None]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        # A socket works on its connections while somebody calls it.
        spoke.recv(0.0)
        try:
            yield hub.recv(0.01)
        except endpoint.LinkReset as error:
            yield error
            return
        except endpoint.MalformedMessage as error:
            yield error


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_connects_again_gains_nothing() -> None:
    with HubProcess(endpoint.CONTROL) as hub, hub.spoke("flooder") as flooder:
        flooder.send(Shutdown(1), timeout_s=WAIT_S)
        before = hub.rss
        with pytest.raises(endpoint.Unreachable):
            send_without_end(flooder, bytes(endpoint.CONTROL.frame_limit))
        assert hub.peak_rss - before < 300 * MIB
        hub.serve()
        flooder.send(Shutdown(7), timeout_s=WAIT_S)


def send_without_end(spoke: ZmqSpoke, frame: bytes) -> None:
    while True:
        spoke.send_frame(frame, timeout_s=1.0)
