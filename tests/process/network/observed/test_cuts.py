"""A machine is cut off, in every way that networks have: the loss is seen and said, and mended by itself."""

import contextlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.deadlines import Meanwhile
from tests.process.command import wait_for
from tests.process.conftest import PROMPT
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import Namespaces
from tests.process.network.observed.recorded import STORY, Observed
from tests.process.serving.serving import START_S, words_of_loss

#: Seen within 2 s (1.5 s of silence, a heartbeat's interval, and what a busy machine adds), and said at once.
_SEEN_S = 2.0
_SLACK_S = 1.0
_ANSWER_S = 90.0
#: An answer that brings nothing for so long waits; a step takes a tenth of it.
_STALL_S = 0.3
_SILENT = re.compile(words_of_loss(r"(\d)", r"silent for (\d+\.\d) s \(killed, frozen or cut off\)", ".*"))
_BROKEN = re.compile(words_of_loss(r"(\d)", "its process ended or its connection broke", ".*"))

Cut = Callable[[Namespaces], AbstractContextManager[None]]

_CUTS: dict[str, Cut] = {
    "blackhole": lambda net: net.dropping("worker1"),
    "deaf": lambda net: net.dropping("worker1", sent=False),
    "reset": lambda net: net.resetting("worker1"),
}


@pytest.mark.parametrize("name", _CUTS)
@pytest.mark.fault("P8", "seen within 2 s, said; once packets pass the answer goes on, and is exact")
@pytest.mark.fault("P8", "inside an all-reduce: seen within 2 s; the answer goes on, and is exact")
def test_cut_inside_an_all_reduce_is_reported_and_recovered(
    observed: Observed, cluster: NetworkCluster, story: str, exact, name: str
) -> None:
    """Another node delays the all-reduce, so that the cut node waits in it; its messages keep it from being lost."""
    rank = cluster.node("worker1")["rank"]
    with cluster.streaming(PROMPT, STORY) as stream:
        with contextlib.ExitStack() as cut:
            with observed.held.holding():
                stream.wait_until_it_stalls(_STALL_S)
                watch = _Watch(cluster)
                cut.enter_context(_CUTS[name](cluster.namespaces))
            if name == "reset":
                watch.check_broken(rank)
            else:
                watch.check_loss(rank)
            meanwhile = Meanwhile()
            lost = cluster.wait_until(lambda status: _state(status, "worker1") == "lost")
            assert meanwhile.spent_s < 2 * _SEEN_S * meanwhile.deadline_factor()
            assert not lost["ready"]
            assert cluster.ready().status_code == 503
        stream.join(_ANSWER_S)
    assert (stream.error, stream.text) == (None, story)
    cluster.wait_ready(3)
    exact(cluster)


class _Watch:
    """Reads the master's log from now on. It is made before a cut, which is noticed while the command that makes it
    still runs."""

    def __init__(self, cluster: NetworkCluster) -> None:
        self._cluster = cluster
        self._before, self._meanwhile = len(cluster.master.log), Meanwhile()

    def check_loss(self, rank: int) -> None:
        found = self._said(_SILENT)
        assert int(found[1]) == rank
        assert 1.5 <= float(found[2]) <= _SEEN_S * self._meanwhile.deadline_factor()

    def check_broken(self, rank: int) -> None:
        assert int(self._said(_BROKEN)[1]) == rank

    def _said(self, words: re.Pattern[str]) -> re.Match[str]:
        took_s = wait_for(lambda: words.search(self._new), START_S)
        assert took_s < (_SEEN_S + _SLACK_S) * self._meanwhile.deadline_factor()
        found = words.search(self._new)
        assert found is not None
        return found

    @property
    def _new(self) -> str:
        return self._cluster.master.log[self._before :]


def _state(status: dict, name: str) -> str:
    return next(node["state"] for node in status["nodes"] if node["host"] == name)
