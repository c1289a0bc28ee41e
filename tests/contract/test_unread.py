"""A process that does not read its connections for a while survives what happens to them meanwhile.

libzmq 4.3.5 aborts the process where a heartbeat of its own is due, or one of the peer is found among what waits, on a
connection that failed while it was not read, because as many messages as may wait did so.
"""

import contextlib
import os
import socket
import struct

import psutil
import pytest

from tests.contract.hub_process import HubProcess, SpokeProcess
from tpiedge.errors import PeerError
from tpiedge.transport.cutting import TcpConnection
from tpiedge.transport.framing import CONTROL, FILES, TENSOR, Plane
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.control import Lost, Shutdown

WAIT_S = 20.0
# Longer than any heartbeat's interval and patience were.
LONG_S = 1.5
PLANES = pytest.mark.parametrize("plane", [CONTROL, TENSOR, FILES], ids=["control", "tensor", "files"])
MESSAGE = Lost(1, 1, "x" * 4000)


@PLANES
def test_a_spoke_whose_link_breaks_while_it_does_not_read(plane: Plane) -> None:
    keys, own = CurveKeys.generate(), CurveKeys.generate()
    with (
        ZmqHub("tcp://127.0.0.1:*", keys, "hub", {own.public: "spoke"}, plane=plane) as hub,
        SpokeProcess(plane, own, hub.address, keys.public) as spoke,
    ):
        assert hub.recv(WAIT_S) is not None
        with contextlib.suppress(PeerError):
            while True:
                hub.send(MESSAGE, to="spoke", timeout_s=0.3)
        (connection,) = hub._backlog._flows
        reset(connection)
        with contextlib.suppress(PeerError):
            assert hub.recv(LONG_S) is None
        assert spoke.lives
        spoke.serve()
        # It reads what came, and goes on over a new connection.
        hub.disconnect("spoke")
        hub.send(Shutdown(9), to="spoke", timeout_s=WAIT_S)
        spoke.wait_until(lambda: answers(hub, Shutdown(9)))


@PLANES
def test_a_hub_whose_peer_sends_heartbeats_and_hangs_up_while_it_does_not_read(plane: Plane) -> None:
    """libzmq's heartbeats, which a well-behaved peer does not send."""
    with HubProcess(plane) as hub:
        with hub.spoke("flooder") as flooder:
            flooder._socket.disconnect(flooder.address)
            flooder._socket.heartbeat_ivl = 1
            flooder._socket.heartbeat_timeout = 10_000
            flooder._socket.connect(flooder.address)
            flooder.send(Shutdown(1), timeout_s=WAIT_S)
            for _ in range(3000):
                flooder.send(Shutdown(1))
            assert flooder.recv(0.2) is None
            abandon(int(hub.address.rpartition(":")[2]))
        with hub.spoke("other") as other:
            hub.serve()
            other.send(Shutdown(9), timeout_s=WAIT_S)
            answer = other.recv(WAIT_S)
            assert answer is not None
            assert answer.message == Shutdown(9)
        assert hub.lives


def reset(connection: TcpConnection) -> None:
    """As where a computer goes away: what is under way is lost, and there is no goodbye."""
    with socket.socket(fileno=os.dup(connection.descriptor)) as double:
        double.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        double.shutdown(socket.SHUT_RDWR)


def abandon(port: int) -> None:
    """Let the connection of this process to `port` end without a goodbye when it is closed."""
    (descriptor,) = [
        one.fd for one in psutil.Process().net_connections("tcp") if one.raddr and one.raddr.port == port
    ]
    with socket.socket(fileno=os.dup(descriptor)) as double:
        double.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def answers(hub: ZmqHub, message: object) -> bool:
    with contextlib.suppress(PeerError):
        envelope = hub.recv(0.1)
        return envelope is not None and envelope.message == message
    return False
