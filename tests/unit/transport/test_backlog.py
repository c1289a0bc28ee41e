import os
import socket
from contextlib import closing

import pytest
import zmq

from tests.contract.crowd import wait_until
from tpiedge.transport.admission import Admission
from tpiedge.transport.backlog import SUPPORTED, Backlog, Flow
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
def test_what_waits(looks):
    flow = Flow()
    for arrived, taken, waiting in looks:
        assert flow.waiting(taken, *arrived) == waiting


def test_what_is_received_while_the_kernel_is_asked_is_none_of_another_connection():
    """Otherwise the bytes would count as waiting for ever, and an honest peer would be cut off after a few races."""
    flow, taken = Flow(), 0
    for arrived, meanwhile in (((1000, 1), 5 * MB), ((5_001_000, 5), 0)):
        flow.taken += meanwhile
        assert flow.waiting(taken, *arrived)[0] == 1000
        taken = flow.taken


@pytest.mark.skipif(not SUPPORTED, reason="system: only Linux tells what has arrived")
def test_a_descriptor_that_is_another_socket_s_by_now():
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
