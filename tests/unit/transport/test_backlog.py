"""How much of what has come over a connection counts as waiting."""

import os
import socket

import zmq

from tpiedge.transport.admission import Admission
from tpiedge.transport.backlog import Arrived, Backlog, Flow
from tpiedge.transport.cutting import TcpConnection


def test_what_comes_is_waiting_until_it_is_received() -> None:
    flow = Flow()
    assert flow.waiting(Arrived(1000, 1), 0) == (1000, 1)
    assert flow.waiting(Arrived(1_000_000, 50), 0) == (1_000_000, 50)
    assert flow.waiting(Arrived(1_000_000, 50), 999_000) == (1000, 0)


def test_one_message_that_is_received_does_not_make_up_for_the_rest() -> None:
    flow = Flow()
    for count in range(1, 11):
        arrived = Arrived(count * 1_000_000, count)
        assert flow.waiting(arrived, count * 100).byte_count == count * 999_900


def test_what_came_over_the_connection_before_gives_no_credit() -> None:
    flow = Flow()
    assert flow.waiting(Arrived(1000, 1), 5_000_000).byte_count == 0
    assert flow.waiting(Arrived(2_001_000, 2), 5_000_000).byte_count == 2_000_000


def test_what_is_received_while_the_kernel_is_asked_is_none_of_another_connection() -> None:
    """Otherwise the bytes would count as waiting for ever, and an honest peer would be cut off after a few races."""
    flow = Flow()
    assert _look(flow, Arrived(1000, 1), 5_000_000).byte_count == 1000
    assert _look(flow, Arrived(5_001_000, 5), 0).byte_count == 1000


def _look(flow: Flow, arrived: Arrived, meanwhile: int) -> Arrived:
    taken = flow.taken
    flow.taken += meanwhile
    return flow.waiting(arrived, taken)


def test_a_descriptor_that_is_another_socket_s_by_now() -> None:
    """libzmq closes connections whose frames still wait, and any part of the process may reuse the descriptor."""
    one, other = socket.socketpair()
    with one, other, zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        backlog = Backlog(router, 1000, Admission({}))
        connection = TcpConnection(one.fileno(), os.fstat(one.fileno()).st_ino)
        assert backlog.flow(connection).address == ""
        backlog.close()
