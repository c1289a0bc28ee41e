import os
import socket

import pytest
import zmq

from tpiedge.transport.admission import Admission
from tpiedge.transport.backlog import Arrived, Backlog, Flow
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
        assert flow.waiting(Arrived(*arrived), taken) == waiting


def test_what_is_received_while_the_kernel_is_asked_is_none_of_another_connection():
    """Otherwise the bytes would count as waiting for ever, and an honest peer would be cut off after a few races."""
    flow, taken = Flow(), 0
    for arrived, meanwhile in ((Arrived(1000, 1), 5 * MB), (Arrived(5_001_000, 5), 0)):
        flow.taken += meanwhile
        assert flow.waiting(arrived, taken).byte_count == 1000
        taken = flow.taken


def test_a_descriptor_that_is_another_socket_s_by_now():
    """libzmq closes connections whose frames still wait, and any part of the process may reuse the descriptor."""
    one, other = socket.socketpair()
    with one, other, zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        backlog = Backlog(router, 1000, Admission({}))
        connection = TcpConnection(one.fileno(), os.fstat(one.fileno()).st_ino)
        assert backlog.flow(connection).address == ""
        backlog.close()
