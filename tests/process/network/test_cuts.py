"""A machine is cut off, in every way that networks have: the loss is seen and said, and mended by itself."""

import re
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import Namespaces
from tests.process.network.observed import PROMPT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")

_LONG = 900
#: Seen within 2 s (1.5 s of silence, a heartbeat's interval, and what a busy machine adds), and said at once.
_SEEN_S = 2.0
_SLACK_S = 1.0
_BACK_S = 25.0
_SILENT = re.compile(r"node (\d) was lost during .*: silent for (\d+\.\d) s \(frozen or cut off\)")

Cut = Callable[[Namespaces], AbstractContextManager[None]]

_CUTS: dict[str, Cut] = {
    "link down": lambda net: net.link_down("worker1"),
    "blackhole": lambda net: net.dropping("worker1"),
    "deaf": lambda net: net.dropping("worker1", sent=False),
    "mute": lambda net: net.dropping("worker1", received=False),
    "reset": lambda net: net.resetting("worker1"),
}


@pytest.mark.parametrize("name", _CUTS)
def test_a_cut_is_seen_said_and_mended(cluster: NetworkCluster, exact, name: str) -> None:
    rank = cluster.node("worker1")["rank"]
    with cluster.streaming(PROMPT, _LONG) as stream, _CUTS[name](cluster.namespaces):
        started = time.monotonic()
        stream.join()
        _check_error(stream, rank, started)
        lost = cluster.wait_until(lambda status: _state(status, "worker1") == "lost", 2 * _SEEN_S)
        assert not lost["ready"]
        assert cluster.ready().status_code == 503
    cluster.wait_ready(3, _BACK_S)
    exact(cluster)


def _check_error(stream, rank: int, started: float) -> None:
    """Explicit, in time, and it names the node and what is known of the cause."""
    assert stream.error is not None, f"a clean end after {len(stream.text)} characters"
    found = _SILENT.search(str(stream.error))
    assert found, str(stream.error)
    assert int(found[1]) == rank
    assert 1.5 <= float(found[2]) <= _SEEN_S
    assert stream.ended_at - started < _SEEN_S + _SLACK_S


def _state(status: dict, name: str) -> str:
    return next(node["state"] for node in status["nodes"] if node["host"] == name)
