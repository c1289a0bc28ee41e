"""Masters with --journal end while the prompt of an accepted request is read, again and again."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.process.command import wait_for
from tests.process.faulty import POISON, Fault
from tests.process.serving.serving import START_S, Serving
from tests.process.serving.test_journal import (
    BROKEN,
    client,
    kill,
    records,
    wait_until_nothing_is_recorded,
)
from tpiedge.master.journal import GUILTY

BODY = {"model": "demo", "prompt": list(range(10, 10 + POISON)), "max_tokens": 20, "temperature": 0}


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fault]:
    """Once it has begun, the prompt is being read and never is."""
    fault = Fault("held", tmp_path_factory.mktemp("held") / "fault")
    yield fault
    fault.end()


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving], held: Fault) -> Serving:
    cluster = clusters("--journal", "--drain", 0, program=held.program)
    cluster.start_master()
    cluster.wait_ready(1)
    return cluster


def ended_in_order(cluster: Serving) -> None:
    cluster.master.popen.terminate()
    assert cluster.master.wait() == 0


def killed(cluster: Serving) -> None:
    node = cluster.rank_zero()
    kill(cluster)
    node.kill()


def asked(cluster: Serving, http: httpx.Client) -> str:
    """Asks, and ends the master while the prompt is read. Returns the answer's path."""
    with http.stream("POST", "/v1/completions", json=BODY) as answer:
        ended_in_order(cluster)
        with contextlib.suppress(*BROKEN):
            answer.read()
        return f"/v1/completions/{answer.headers['x-request-id']}"


def taken_up(record: Path, count: int) -> None:
    """Waits until so many masters have."""
    wait_for(lambda: record.read_bytes().count(b"taken up") == count, START_S)


@pytest.mark.fault(
    "P7", "asked to end with --journal while a prompt is read, three times in a row: the answer goes on"
)
def test_masters_that_end_in_order_do_not_count(cluster: Serving, held: Fault) -> None:
    with client(cluster) as http:
        expected = http.post("/v1/completions", json=BODY).json()["choices"][0]["text"]
        wait_until_nothing_is_recorded(cluster, http)
        held.begin()
        path = asked(cluster, http)
        (record,) = records(cluster)
        written = record.read_bytes()
        for _ in range(GUILTY):
            cluster.start_master()
            taken_up(record, 1)
            ended_in_order(cluster)
            assert record.read_bytes() == written
        held.end()
        cluster.start_master()
        assert http.get(path).json()["choices"][0]["text"] == expected
        wait_until_nothing_is_recorded(cluster, http)


@pytest.mark.fault(
    "P7", "killed with --journal while a prompt is read, three times in a row: it is set aside"
)
def test_masters_that_are_killed_count(cluster: Serving, held: Fault) -> None:
    """Also with one between them that ends in order."""
    held.begin()
    with client(cluster) as http:
        path = asked(cluster, http)
        (record,) = records(cluster)
        for number in range(1, GUILTY + 1):
            cluster.start_master()
            taken_up(record, number)
            if number == GUILTY:
                ended_in_order(cluster)
                cluster.start_master()
                taken_up(record, number)
            killed(cluster)
        cluster.start_master()
        aside = record.with_suffix(".aside")
        words = f"set aside as {aside}: {GUILTY} masters went on with it, and ended before it did"
        wait_for(lambda: words in cluster.master.log, START_S)
        assert http.get(path).status_code == 404
    assert records(cluster) == [aside]
