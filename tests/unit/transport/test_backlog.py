import os
import socket
from contextlib import closing, contextmanager

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.raw_peers import wait_until
from tpiedge.transport import backlog
from tpiedge.transport.admission import Admission
from tpiedge.transport.backlog import SUPPORTED, Backlog, Flow, overfull_address
from tpiedge.transport.cutting import TcpConnection

MB = 1_000_000


@pytest.mark.parametrize(
    "looks",
    [
        [((1000, 1), 0, (1000, 1)), ((MB, 50), 0, (MB, 50)), ((MB, 50), 999_000, (1000, 0))],
        [((count * MB, count), count * 100, (count * 999_900, 0)) for count in range(1, 11)],
        [((1000, 1), 5 * MB, (0, 0)), ((2_001_000, 2), 5 * MB, (2 * MB, 1))],
    ],
    ids=["until it is received", "one small message more each time", "no credit of a connection before"],
)
def test_waiting_bytes_are_arrived_but_not_yet_received(looks):
    flow = Flow()
    for arrived, taken, waiting in looks:
        assert flow.waiting(taken, *arrived) == waiting


def test_bytes_received_during_kernel_query_are_not_waiting():
    """Otherwise the bytes would count as waiting for ever, and an honest peer would be cut off after a few races."""
    flow, taken = Flow(), 0
    for arrived, meanwhile in (((1000, 1), 5 * MB), ((5_001_000, 5), 0)):
        flow.taken += meanwhile
        assert flow.waiting(taken, *arrived)[0] == 1000
        taken = flow.taken


@pytest.mark.skipif(not SUPPORTED, reason="system: only Linux tells what has arrived")
def test_reused_descriptor_is_not_cut():
    """libzmq closes connections whose frames still wait, and any part of the process may reuse the descriptor."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as router,
        closing(Backlog(router, 1000, Admission({}))) as backlog,
    ):
        gone = TcpConnection(one.fileno(), os.fstat(one.fileno()).st_ino + 1)
        backlog.flow(gone).cut = True
        wait_until(lambda: not backlog.flow(gone).cut)
        one.send(b"x")
        assert other.recv(1) == b"x"


LIMIT, EACH = 5, 3


@contextmanager
def few():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backlog, "MAX_UNAUTHENTICATED", LIMIT)
        patch.setattr(backlog, "UNAUTHENTICATED_PER_ADDRESS", EACH)
        yield


@pytest.mark.parametrize(
    ("addresses", "full"),
    [("a", None), ("aaa", None), ("aaaa", "a"), ("bacac", None), ("bacaca", "a"), ("ccaaab", "a")],
)
@few()
def test_overfull_address_is_the_newcomers_or_the_fullest(addresses, full):
    assert overfull_address(addresses) == full


@given(st.lists(st.sampled_from("abcd")))
@few()
def test_connection_limits_hold_and_the_newcomer_stays(arrivals):
    here = []
    for number, address in enumerate(arrivals):
        here.append((address, number))
        addresses = [one for one, _ in here]
        full = overfull_address(addresses)
        assert (full is not None) == (len(here) > LIMIT or addresses.count(address) > EACH)
        if full is not None:
            here.remove(next(one for one in here if one[0] == full))
        assert here[-1] == (address, number)
