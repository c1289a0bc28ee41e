"""One worker's trouble is its own: while its node dies again and again, or it comes and goes, the others answer."""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.serving.conftest import PROMPT, start_trio
from tests.process.serving.serving import START_S, Serving, node_of
from tpiedge.master.workers import FIRST_S

LONG = 300
LEFT_OUT = r"it was lost.*\(for another (\d+) s\)|was lost during .*\(for another (\d+) s\)"


@pytest.fixture
def slow_trio(tmp_path: Path) -> Iterator[Serving]:
    """As everywhere, but each test has its own: what was lost of a worker counts for an hour."""
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
    return int(found[1] or found[2])


def wait_whole(cluster: Serving, limit_s: float) -> None:
    """Until all three serve by themselves."""
    cluster.wait_until(
        lambda status: status["ready"] and all(node["rank"] is not None for node in status["nodes"]), limit_s
    )


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
    comes_and_goes(cluster, "ann")
    rest_s = left_out_s(why_left_out(cluster, "ann"))
    assert rest_s <= FIRST_S
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
        stream.join(START_S)
    assert (stream.error, stream.text) == (None, whole)
    # The last loss may have been noticed after its wait, so that another one began.
    wait_whole(cluster, 2 * FIRST_S + START_S)
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

    def dies_in_an_answer() -> str:
        """Returns why it is left out then."""
        epoch = cluster.status()["epoch"]
        with cluster.streaming(PROMPT, LONG) as stream:
            with cluster.crawling():
                bob.node.kill()
                cluster.wait_until(lambda status: status["ready"] and status["epoch"] != epoch)
                why = why_left_out(cluster, "bob")
            stream.join(START_S)
        assert (stream.error, stream.text) == (None, whole)
        return why

    for waits_s in (FIRST_S, 2 * FIRST_S):
        why = dies_in_an_answer()
        assert waits_s / 2 < left_out_s(why) <= waits_s
        assert cluster.whole(PROMPT, LONG) == whole
        wait_whole(cluster, waits_s + START_S)
        assert cluster.whole(PROMPT, LONG) == whole
    assert bob.agent == agent
