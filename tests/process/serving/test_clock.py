import signal
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime

import pytest

from tests.process.command import wait_for
from tests.process.serving.serving import START_S, Serving
from tests.process.serving.wall_clock import WallClock, build_shim, why_no_shim

_HOUR_S = 3600
#: As much as a token forgives.
_MINUTES_S = 240
_LONG = 400
#: Whole seconds are compared, and there may be much else to do.
_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> WallClock:
    reason = why_no_shim()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("clock")
    return WallClock(build_shim(folder), folder / "shift")


@pytest.fixture(scope="module")
def cluster(clock: WallClock, clusters: Callable[..., Serving]) -> Serving:
    cluster = clusters("--min-workers", 1, program=clock.program)
    cluster.start_master()
    cluster.start_worker("ann", program=clock.program)
    return cluster


@pytest.fixture(autouse=True)
def _right_again(clock: WallClock) -> Iterator[None]:
    yield
    clock.shift(0)


def masters_lead_s(cluster: Serving) -> float:
    return parsedate_to_datetime(cluster.ready().headers["Date"]).timestamp() - time.time()


@pytest.mark.fault("P13", "by an hour during an answer, in both directions: nobody notices")
def test_clock_jump_during_an_answer_changes_nothing(
    cluster: Serving, clock: WallClock, exact: Callable[[Serving], None]
) -> None:
    epoch = cluster.wait_ready(2)["epoch"]
    whole = cluster.whole("Once", _LONG)
    with cluster.streaming("Once", _LONG) as stream:
        with cluster.crawling():
            for seconds in (_HOUR_S, -_HOUR_S):
                clock.shift(seconds)
                wait_for(lambda lead_s=seconds: abs(masters_lead_s(cluster) - lead_s) < _WITHIN_S, START_S)
                assert cluster.status()["epoch"] == epoch
            assert not stream.ended_at
        stream.join()
    assert (stream.error, stream.text) == (None, whole)
    exact(cluster)
    assert cluster.status()["epoch"] == epoch


@pytest.mark.fault("P13", "minutes behind: a token that was made before still lets a worker in")
def test_a_worker_joins_while_the_clock_is_behind(cluster: Serving, clock: WallClock) -> None:
    cluster.wait_ready(2)
    clock.shift(-_MINUTES_S)
    worker = cluster.start_worker("bob", program=clock.program)
    cluster.wait_until(lambda status: any(node["host"] == "bob" for node in status["nodes"]))
    worker.process.end()
    del cluster.workers["bob"]


@pytest.mark.fault("P13", "set back before a new start of the master: it adopts its workers")
def test_master_restarted_with_earlier_clock_adopts_its_workers(
    cluster: Serving, clock: WallClock, exact: Callable[[Serving], None]
) -> None:
    """Numbers of epochs begin with the time of its start."""
    epoch = cluster.wait_ready(2)["epoch"]
    agent = cluster.workers["ann"].agent
    cluster.master.popen.kill()
    assert cluster.master.wait() == -signal.SIGKILL
    clock.shift(-_HOUR_S)
    cluster.start_master()
    assert cluster.wait_ready(2)["epoch"] < epoch
    exact(cluster)
    assert cluster.workers["ann"].agent == agent
