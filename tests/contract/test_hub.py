import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.contract.test_endpoint import receive
from tests.fakes.inprocess import InProcessHub
from tpiedge.transport.admission import Admission
from tpiedge.transport.endpoint import CONTROL, Unreachable
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
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


def test_waking_ends_a_wait_that_is_under_way(pair: Pair) -> None:
    waker = threading.Timer(0.05, pair.hub.wake)
    waker.start()
    began = time.monotonic()
    assert pair.hub.recv(WAIT_S) is None
    assert time.monotonic() - began < WAIT_S / 2
    waker.join()


def test_who_is_cut_hears_a_farewell_and_is_spoken_with_no_more(pair: Pair) -> None:
    pair.greet()
    pair.hub.admission.revoke("w-1")
    pair.hub.disconnect("w-1", GOODBYE)
    pair.hub.disconnect("w-1", GOODBYE)
    assert receive(pair.spoke).message == GOODBYE
    with pytest.raises(Unreachable):
        pair.hub.send(Shutdown(3), to="w-1", timeout_s=0.0)
    assert pair.hub.admission.key_of("w-1") is None


def test_what_is_not_admitted_any_more_is_dropped_and_counted(pair: Pair) -> None:
    pair.greet()
    pair.hub.admission.revoke("w-1")
    pair.spoke.send(Shutdown(2))
    deadline = time.monotonic() + WAIT_S
    while not pair.hub.counters.refused:
        assert time.monotonic() < deadline
        assert pair.hub.recv(0.02) is None
    assert pair.hub.counters.refused == 1


def test_the_end_of_a_peer_is_known_without_its_word(pair: Pair) -> None:
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


def test_where_a_peer_is_connected_from(pair: Pair) -> None:
    pair.greet()
    assert pair.hub.address_of("w-1") == HOST
    assert pair.hub.address_of("w-2") == ""
