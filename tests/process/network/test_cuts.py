"""A machine is cut off, in every way that networks have: the loss is seen and said, and mended by itself."""

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import openai
import pytest

from tests.process.command import wait_for
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import Namespaces
from tests.process.network.observed import PROMPT
from tests.process.serving.serving import words_of_loss

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system: network namespaces are Linux's")

_LONG = 900
#: Seen within 2 s (1.5 s of silence, a heartbeat's interval, and what a busy machine adds), and said at once.
_SEEN_S = 2.0
_SLACK_S = 1.0
_BACK_S = 25.0
_LONG_PROMPT = list(range(10, 960))
_MEGABITS = 20
#: Of twelve times 0.7 MB.
_SOME_STATES = 1_000_000
#: An answer that brings nothing for so long waits; a step takes a tenth of it.
_STALL_S = 0.3
_SILENT = re.compile(words_of_loss(r"(\d)", r"silent for (\d+\.\d) s \(killed, frozen or cut off\)", ".*"))

Cut = Callable[[Namespaces], AbstractContextManager[None]]

_CUTS: dict[str, Cut] = {
    "link down": lambda net: net.link_down("worker1"),
    "blackhole": lambda net: net.dropping("worker1"),
    "deaf": lambda net: net.dropping("worker1", sent=False),
    "mute": lambda net: net.dropping("worker1", received=False),
    "reset": lambda net: net.resetting("worker1"),
}


@pytest.mark.parametrize("name", _CUTS)
@pytest.mark.fault("P8", "seen within 2 s, said, and mended once packets pass")
def test_a_cut_is_seen_said_and_mended(cluster: NetworkCluster, exact, patience: float, name: str) -> None:
    rank = cluster.node("worker1")["rank"]
    with cluster.streaming(PROMPT, _LONG) as stream, _CUTS[name](cluster.namespaces):
        started = time.monotonic()
        stream.join()
        _check_error(stream, rank, started, patience)
        lost = cluster.wait_until(lambda status: _state(status, "worker1") == "lost", 2 * _SEEN_S * patience)
        assert not lost["ready"]
        assert cluster.ready().status_code == 503
    cluster.wait_ready(3, _BACK_S)
    exact(cluster)


@pytest.mark.parametrize("name", ["link down", "blackhole"])
@pytest.mark.fault("P8", "503 with the cause within 2 s")
def test_a_cut_in_prefill(cluster: NetworkCluster, exact, patience: float, name: str) -> None:
    """No stream has begun, so the error is the answer."""
    rank = cluster.node("worker1")["rank"]
    with cluster.namespaces.slow("worker1", _MEGABITS), _asking(cluster) as answer:
        _wait_for_prefill(cluster)
        with _CUTS[name](cluster.namespaces):
            started = time.monotonic()
            with pytest.raises(openai.APIStatusError) as caught:
                answer.result(20)
            _check_words(str(caught.value), rank, time.monotonic() - started, patience)
            assert caught.value.status_code == 503
    cluster.wait_ready(3, _BACK_S)
    exact(cluster)


@pytest.mark.fault("P8", "the stream ends in an error within 2 s")
def test_a_cut_inside_an_all_reduce(cluster: NetworkCluster, exact, patience: float) -> None:
    """Another node holds it up, so that the one that is cut off waits in it."""
    rank = cluster.node("worker1")["rank"]
    node = cluster.workers["worker2"].node
    with cluster.streaming(PROMPT, _LONG) as stream, contextlib.ExitStack() as cut:
        node.suspend()
        try:
            stream.wait_until_it_stalls(_STALL_S)
            cut.enter_context(cluster.namespaces.dropping("worker1"))
            started = time.monotonic()
        finally:
            node.resume()
        stream.join()
        _check_error(stream, rank, started, patience)
    cluster.wait_ready(3, _BACK_S)
    exact(cluster)


@contextlib.contextmanager
def _asking(cluster: NetworkCluster) -> Iterator[Future]:
    """A question whose prompt takes seconds on a slow link."""
    with cluster.client() as client, ThreadPoolExecutor(1) as thread:
        yield thread.submit(
            client.completions.create,
            model=cluster.model,
            prompt=_LONG_PROMPT,
            max_tokens=20,
            temperature=0,
            stream=True,
        )


def _wait_for_prefill(cluster: NetworkCluster) -> None:
    """Until it is under way: some of the hidden states have come to worker1."""
    before = cluster.namespaces.received_bytes("worker1")
    cluster.wait_until(lambda status: status["running"] == 1)
    wait_for(lambda: cluster.namespaces.received_bytes("worker1") - before > _SOME_STATES, 20)


def _check_error(stream, rank: int, started: float, patience: float) -> None:
    """Explicit, in time, and it names the node and what is known of the cause."""
    assert stream.error is not None, f"a clean end after {len(stream.text)} characters"
    _check_words(str(stream.error), rank, stream.ended_at - started, patience)


def _check_words(error: str, rank: int, took_s: float, patience: float) -> None:
    found = _SILENT.search(error)
    assert found, error
    assert int(found[1]) == rank
    assert 1.5 <= float(found[2]) <= _SEEN_S * patience
    assert took_s < (_SEEN_S + _SLACK_S) * patience


def _state(status: dict, name: str) -> str:
    return next(node["state"] for node in status["nodes"] if node["host"] == name)
