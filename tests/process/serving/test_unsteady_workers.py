"""One worker's trouble is its own: while its node dies again and again, or it comes and goes, the others answer."""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.serving.conftest import PROMPT, start_trio
from tests.process.serving.serving import START_S, Serving, node_of
from tpiedge.master.quarantine import FLAPS, REST_S

LONG = 300
#: A worker that is gone again within SAME_S of its last loss is lost once.
MOST_LOSSES = 4 * FLAPS
#: Of pauses, as long as the test may take.
MOST_S = 4 * REST_S
LEFT_OUT = r"it was lost .*\(for another (\d+) s\)"
OFTEN = r"it was lost (\d+) times within "


@pytest.fixture
def slow_trio(tmp_path: Path) -> Iterator[Serving]:
    """As everywhere, but each test has its own: what was lost of a worker counts for ten minutes."""
    with contextlib.closing(Serving(tmp_path, "--min-workers", 1)) as cluster:
        yield start_trio(cluster)


def state_of(status: dict, name: str) -> str:
    return node_of(status, name)["state"]


def why_left_out(cluster: Serving, name: str) -> str:
    """At the first look that says so."""
    status = cluster.wait_until(lambda status: state_of(status, name) == "left out")
    return node_of(status, name)["why"]


def left_out_s(why: str) -> int:
    """For how long it will still be left out."""
    found = re.search(LEFT_OUT, why)
    assert found, why
    return int(found[1])


def longest_s(why: str) -> float:
    """For how long it is left out at most, after so many losses: on a busy machine there are others than the test's."""
    found = re.search(OFTEN, why)
    assert found, why
    return REST_S * 2 ** (int(found[1]) - FLAPS)


def comes_and_goes(cluster: Serving, name: str) -> dict:
    """Its agent is killed and started again. Returns the first status with it."""
    worker = cluster.workers[name]
    worker.agent.kill()
    worker.process.wait()
    cluster.wait_until(lambda status: state_of(status, name) == "lost")
    cluster.start_worker(name, token=False)
    return cluster.wait_until(lambda status: state_of(status, name) != "lost")


@pytest.mark.timeout(900)
@pytest.mark.fault(
    "P1",
    "comes and goes all the time: the others answer in one epoch, exactly; it is taken back once it stays",
)
def test_a_worker_that_comes_and_goes(slow_trio: Serving) -> None:
    cluster = slow_trio
    cluster.wait_ready(3)
    whole = cluster.whole(PROMPT, LONG)
    times = 0
    # On a busy machine the first pause may be too short for one coming; each is longer than the one before.
    while not times:
        for _ in range(MOST_LOSSES):
            if state_of(comes_and_goes(cluster, "ann"), "ann") == "left out":
                break
        rest_s = left_out_s(why_left_out(cluster, "ann"))
        assert rest_s < MOST_S
        ends = time.monotonic() + rest_s - 1
        epoch = cluster.wait_until(lambda status: status["ready"])["epoch"]
        with cluster.streaming(PROMPT, LONG) as stream:
            with cluster.crawling():
                while True:
                    status = comes_and_goes(cluster, "ann")
                    if time.monotonic() > ends:
                        break
                    assert status["ready"]
                    assert (status["epoch"], state_of(status, "ann")) == (epoch, "left out")
                    times += 1
            stream.join(START_S)
        assert (stream.error, stream.text) == (None, whole)
    # The last loss may have been noticed after its pause, so that another one began.
    cluster.wait_until(
        lambda status: status["ready"] and node_of(status, "ann")["rank"] is not None, MOST_S + START_S
    )
    assert cluster.whole(PROMPT, LONG) == whole


@pytest.mark.timeout(600)
@pytest.mark.fault(
    "P2",
    "again and again: the others answer without it, exactly; it is tried again after a pause, then a longer one",
)
def test_a_node_dies_again_and_again(slow_trio: Serving) -> None:
    cluster, bob = slow_trio, slow_trio.workers["bob"]
    cluster.wait_ready(3)
    agent, whole = bob.agent, cluster.whole(PROMPT, LONG)

    def dies_in_an_answer(*, left_out: bool = False) -> str:
        """Returns why it is left out then, where it is to be."""
        epoch = cluster.status()["epoch"]
        with cluster.streaming(PROMPT, LONG) as stream:
            with cluster.crawling():
                bob.node.kill()
                cluster.wait_until(lambda status: status["ready"] and status["epoch"] != epoch)
                why = why_left_out(cluster, "bob") if left_out else ""
            stream.join(START_S)
        assert (stream.error, stream.text) == (None, whole)
        return why

    for _ in range(FLAPS - 1):
        dies_in_an_answer()
        cluster.wait_ready(3)
        assert cluster.whole(PROMPT, LONG) == whole  # so that this epoch has proven itself
    why = dies_in_an_answer(left_out=True)
    first_s = longest_s(why)
    assert left_out_s(why) <= first_s
    assert cluster.whole(PROMPT, LONG) == whole
    cluster.wait_ready(3, first_s + START_S)
    assert cluster.whole(PROMPT, LONG) == whole
    assert left_out_s(dies_in_an_answer(left_out=True)) > REST_S
    cluster.wait_ready(2)
    assert cluster.whole(PROMPT, LONG) == whole
    assert bob.agent == agent
