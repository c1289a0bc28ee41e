"""A node process that waits to be needed outlives nobody, and says why it has ended."""

import subprocess
import sys
import time

import psutil
import pytest

from tests.process.command import gone, wait_for
from tpiedge.errors import PeerError
from tpiedge.launch.slot import Standby

#: To import torch beside much else takes its time, and so does all that waits for it.
IMPORTING_S = 90.0

# A parent that says which process it has started.
PARENT = """
import sys
from tpiedge.launch.slot import Standby

standby = Standby(1)
print(standby.pid, flush=True)
sys.stdin.read()
"""


def test_a_waiting_node_does_not_outlive_a_killed_parent():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        assert not gone(child)
        parent.kill()
        wait_for(lambda: gone(child), IMPORTING_S)


def test_one_that_dies_before_its_report_says_why():
    standby = Standby(1)
    assert standby.report(time.monotonic()) is None
    psutil.Process(standby.pid).kill()
    with pytest.raises(PeerError, match="did not report: its process was killed by SIGKILL"):
        standby.report(time.monotonic() + IMPORTING_S)
    assert standby.exit_cause() is not None
    standby.stop(0.0)
