import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import zmq

from tests.contract.hub_process import HubProcess
from tests.contract.raw_peers import wait_until
from tests.contract.test_endpoint import receive, wait_for_refusal
from tests.fakes.inprocess import InProcessHub
from tpiedge.errors import PeerError
from tpiedge.transport import endpoint
from tpiedge.transport.admission import Admission
from tpiedge.transport.endpoint import CONTROL, Unreachable
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.units import KIB, MIB
from tpiedge.wire.control import Shutdown
from tpiedge.wire.join import Refused

WAIT_S = 20.0
HOST = "127.0.0.1"
MASTER, KEYS = CurveKeys.generate(), CurveKeys.generate()
GOODBYE = Refused("revoked", "goodbye")


class Pair:
    def __init__(self, kind: str, stack: ExitStack) -> None:
        self.hub: Any
        self.spoke: Any
        allowed = {KEYS.public: "w-1"}
        if kind == "inprocess":
            self.hub = InProcessHub("master", CONTROL, Admission(allowed))
            self.hub.addresses["w-1"] = HOST
            self.spoke = self.hub.spoke("w-1")
        else:
            self.hub = ZmqHub(f"tcp://{HOST}:*", MASTER, "master", allowed, plane=CONTROL)
            self.spoke = ZmqSpoke(
                self.hub.address, MASTER.public, KEYS, "w-1", hub_name="master", plane=CONTROL
            )
        stack.enter_context(closing(self.hub))
        stack.enter_context(closing(self.spoke))

    def greet(self) -> None:
        self.spoke.send(Shutdown(1))
        receive(self.hub)


@pytest.fixture(params=["inprocess", "zeromq"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(request.param, stack)


def test_wake_ends_a_pending_recv(pair: Pair) -> None:
    waker = threading.Timer(0.05, pair.hub.wake)
    waker.start()
    began = time.monotonic()
    assert pair.hub.recv(WAIT_S) is None
    assert time.monotonic() - began < WAIT_S / 2
    waker.join()


def test_evicted_peer_gets_a_goodbye_and_no_more_messages(pair: Pair) -> None:
    pair.greet()
    pair.hub.admission.revoke("w-1")
    pair.hub.disconnect("w-1", GOODBYE)
    pair.hub.disconnect("w-1", GOODBYE)
    assert receive(pair.spoke).message == GOODBYE
    with pytest.raises(Unreachable):
        pair.hub.send(Shutdown(3), to="w-1", timeout_s=0.0)
    assert pair.hub.admission.key_of("w-1") is None


def test_messages_of_revoked_peer_are_dropped_and_counted(pair: Pair) -> None:
    pair.greet()
    pair.hub.admission.revoke("w-1")
    pair.spoke.send(Shutdown(2))
    wait_for_refusal(pair.hub)
    assert pair.hub.counters.refused == 1


def test_hub_notices_closed_peer_after_its_last_message(pair: Pair) -> None:
    pair.greet()
    assert pair.hub.is_connected("w-1")
    assert not pair.hub.is_connected("w-2")
    pair.spoke.send(Shutdown(2))
    pair.spoke.close()
    deadline, heard = time.monotonic() + WAIT_S, []
    while pair.hub.is_connected("w-1"):
        assert time.monotonic() < deadline
        heard.append(pair.hub.recv(0.02))
    heard.append(pair.hub.recv(0.02))
    assert [one.message for one in heard if one is not None] == [Shutdown(2)], "what it said last is heard"


def test_hub_reports_the_address_of_a_connected_peer(pair: Pair) -> None:
    pair.greet()
    assert pair.hub.address_of("w-1") == HOST
    assert pair.hub.address_of("w-2") == ""


SMALL = endpoint.Plane(header_limit=1000, tensor_limit=64 * KIB, queue_length=16, waiting_limit=MIB)


@pytest.mark.fault("W2", "a flood takes bounded memory of the master; others are served")
@pytest.mark.parametrize("plane", [endpoint.CONTROL, endpoint.TENSOR], ids=["control", "tensor"])
def test_flood_of_largest_frames_takes_bounded_memory(plane: endpoint.Plane) -> None:
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


@pytest.mark.parametrize("network", ["zeromq"], indirect=True)
def test_oversized_multipart_message_ends_its_connection(network, caplog):
    hub, flooder, other = network.hub(SMALL), network.spoke(1, SMALL), network.spoke(2, SMALL)
    for spoke in (flooder, other):
        spoke.send(Shutdown(1), timeout_s=WAIT_S)
        receive(hub)
    parts = 2 * SMALL.backlog_limit // SMALL.frame_limit
    with caplog.at_level(logging.WARNING):
        flooder.socket.send_multipart([bytes(SMALL.frame_limit)] * parts)
        wait_until(lambda: "cut a connection off" in caplog.text)
    other.send(Shutdown(7))
    *heard, broken = until_reset(hub, flooder)
    assert "node-1 broke and was made anew: it had sent more than" in str(broken)
    deadline = time.monotonic() + WAIT_S
    while endpoint.Envelope("node-2", Shutdown(7)) not in heard:
        assert time.monotonic() < deadline
        heard.append(hub.recv(0.01))


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


def test_reconnecting_flooder_takes_bounded_memory() -> None:
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
