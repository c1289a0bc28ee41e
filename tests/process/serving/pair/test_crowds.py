"""Thousands of callers without a key at a master that serves: it holds few of them, none for long, and works on."""

import socket
import sys
import time
from contextlib import ExitStack

import pytest

from tests.contract.raw_peers import sockets_of, wait_until
from tests.process.serving.serving import Serving
from tpiedge.joining.connecting import enrol, open_link
from tpiedge.joining.identity import peer_name
from tpiedge.joining.tokens import parse_token
from tpiedge.transport.backlog import MAX_UNAUTHENTICATED
from tpiedge.transport.keys import CurveKeys

pytestmark = [
    pytest.mark.usefixtures("serving_on"),
    pytest.mark.skipif(sys.platform != "linux", reason="system: elsewhere no connection is watched"),
]

#: Of the loopback network.
SOURCES = [f"127.0.0.{number}" for number in range(2, 10)]
#: Sockets that a serving master may open meanwhile: HTTP of the tests, a worker's file.
OTHERS = 8
#: For as many as would take a minute at three seconds for each crowd.
ALL_S = 30.0


@pytest.fixture
def sockets(cluster: Serving):
    """Returns the master's sockets beyond those at the start."""
    pid = cluster.master.pid
    before = sockets_of(pid)
    return lambda: sockets_of(pid) - before


def joins(cluster: Serving) -> None:
    """A new worker with a token, at once."""
    token, keys = parse_token(cluster.token()), CurveKeys.generate()
    name = peer_name(keys.public)
    with open_link(cluster.address, token.master_key, keys, name, secret=token.secret) as link:
        assert enrol(link, "newcomer", token.secret).name == name


@pytest.mark.alone
@pytest.mark.fault("W7", "of five thousand few are kept at a time, and none for long; members are served")
def test_master_survives_five_thousand_silent_connections(cluster: Serving, sockets):
    """The master ends them as they come: libzmq alone would have each for three seconds."""
    place, deadline = (cluster.address.host, cluster.port), time.monotonic() + ALL_S
    with ExitStack() as stack:
        for number in range(5000):
            source = SOURCES[number % len(SOURCES)]
            stack.enter_context(socket.create_connection(place, 10, source_address=(source, 0)))
            if number % 250 == 249:
                wait_until(lambda: sockets() <= MAX_UNAUTHENTICATED + OTHERS)
                assert time.monotonic() < deadline
        joins(cluster)
        wait_until(lambda: sockets() <= OTHERS)
