"""A fork server and its nodes outlive no parent, and say why they have ended."""

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.process.command import gone, wait_for
from tpiedge.errors import PeerError
from tpiedge.launch.bootstrap import NodeBootstrap, Timing
from tpiedge.launch.slot import ForkServer
from tpiedge.transport.keys import CurveKeys

#: To import torch beside much else takes its time, and so does all that waits for it.
IMPORTING_S = 90.0

#: A node of it tries to reach its master as long as it lives.
NODE = NodeBootstrap(
    1, 1, "tcp://127.0.0.1:9", CurveKeys.generate().public, CurveKeys.generate(), Timing(start_s=600.0)
)

# A parent that says which processes it has started.
PARENT = """
import sys, time
from tests.process.test_fork_server import NODE
from tpiedge.launch.slot import ForkServer

server = ForkServer(1)
node = server.start_node(NODE)
while node.exit_cause() is None and not node.pid:
    time.sleep(0.01)
print(server.pid, node.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server() -> Iterator[ForkServer]:
    started = ForkServer(1)
    yield started
    started.stop(0.0)


def test_fork_server_and_node_end_with_their_parent():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        family = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(family) == 2
        assert not any(map(gone, family))
        parent.kill()
        wait_for(lambda: all(map(gone, family)), IMPORTING_S)


def test_fork_server_killed_before_its_report_says_why():
    server = ForkServer(1, measure=True)
    assert server.report(time.monotonic()) is None
    psutil.Process(server.pid).kill()
    with pytest.raises(PeerError, match="did not report: its process was killed by SIGKILL"):
        server.report(time.monotonic() + IMPORTING_S)
    assert server.exit_cause() is not None
    server.stop(0.0)


def test_killed_node_reports_its_cause_and_can_be_replaced(server: ForkServer):
    for _ in range(2):
        node = server.start_node(NODE)
        try:
            wait_for(lambda node=node: node.pid > 0, IMPORTING_S)
            assert psutil.Process(node.pid).ppid() == server.pid
            psutil.Process(node.pid).kill()
            wait_for(lambda node=node: node.exit_cause() is not None, IMPORTING_S)
            assert node.exit_cause() == "its process was killed by SIGKILL"
        finally:
            node.stop(0.0)
    assert server.exit_cause() is None


def test_node_can_be_stopped_before_it_is_forked(server: ForkServer):
    given_up = server.start_node(NODE)
    given_up.stop(0.0)
    node = server.start_node(NODE)
    wait_for(lambda: node.pid > 0, IMPORTING_S)
    wait_for(lambda: len(psutil.Process(server.pid).children()) == 1, IMPORTING_S)
    node.stop(0.0)


def test_nodes_end_with_their_server_and_say_why(server: ForkServer):
    node = server.start_node(NODE)
    wait_for(lambda: node.pid > 0, IMPORTING_S)
    forked = psutil.Process(node.pid)
    psutil.Process(server.pid).kill()
    wait_for(lambda: node.exit_cause() is not None and gone(forked), IMPORTING_S)
    assert node.exit_cause() == "its process was killed by SIGKILL"
    node.stop(0.0)
