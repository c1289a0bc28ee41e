"""The time of day jumps by an hour, in both directions, while master and workers do their work: nobody notices."""

import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from tests.process.command import wait_for
from tests.process.serving.serving import Serving

_HOUR_S = 3600
#: As much as a token forgives.
_MINUTES_S = 240
_LONG = 900
#: Whole seconds are compared, and there may be much else to do.
_WITHIN_S = 60.0
#: The server looks at its clock every second.
_TOLD_S = 10.0


class WallClock:
    """That of all processes of a cluster."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shift(0)

    def shift(self, seconds: int) -> None:
        """From now on it differs by so much from what it would be."""
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(struct.pack("i", seconds))


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WallClock]:
    """What is started from now on goes by it."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("compiler: no C compiler: apt-get install gcc")
    folder = tmp_path_factory.mktemp("clock")
    source = Path(__file__).with_name("wall_clock.c")
    library = folder / "wall_clock.so"
    subprocess.run(
        [compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", source, "-o", library], check=True
    )
    clock = WallClock(folder / "shift")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALL_CLOCK_SHIFT", str(folder / "shift"))
        patch.setenv("LD_PRELOAD", str(library))
        yield clock


@pytest.fixture(scope="module")
def cluster(clock: WallClock, clusters: Callable[..., Serving]) -> Serving:
    cluster = clusters("--min-workers", 1)
    cluster.start_master()
    cluster.start_worker("ann")
    return cluster


@pytest.fixture(autouse=True)
def _right_again(clock: WallClock) -> Iterator[None]:
    yield
    clock.shift(0)


def masters_lead_s(cluster: Serving) -> float:
    """By how much the master's clock is ahead."""
    return parsedate_to_datetime(cluster.ready().headers["Date"]).timestamp() - time.time()


@pytest.mark.fault("P13", "by an hour during an answer, in both directions: nobody notices")
def test_an_answer_during_which_the_clock_jumps(
    cluster: Serving, clock: WallClock, exact: Callable[[Serving], None]
) -> None:
    epoch = cluster.wait_ready(2)["epoch"]
    with cluster.streaming("Once", _LONG) as stream:
        stream.join(60)
    whole = stream.text
    with cluster.streaming("Once", _LONG) as stream:
        for seconds in (_HOUR_S, -_HOUR_S):
            clock.shift(seconds)
            wait_for(lambda lead_s=seconds: abs(masters_lead_s(cluster) - lead_s) < _WITHIN_S, _TOLD_S)
            assert cluster.status()["epoch"] == epoch
        stream.join(60)
    assert (stream.error, stream.text) == (None, whole)
    exact(cluster)
    assert cluster.status()["epoch"] == epoch


@pytest.mark.fault("P13", "minutes behind: a token that was made before still lets a worker in")
def test_a_worker_joins_while_the_clock_is_behind(cluster: Serving, clock: WallClock) -> None:
    cluster.wait_ready(2)
    clock.shift(-_MINUTES_S)
    worker = cluster.start_worker("bob")
    cluster.wait_until(lambda status: any(node["host"] == "bob" for node in status["nodes"]))
    worker.process.end()
    del cluster.workers["bob"]


@pytest.mark.fault("P13", "set back before a new start of the master: it adopts its workers")
def test_a_master_that_starts_in_the_past_adopts_its_workers(
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
