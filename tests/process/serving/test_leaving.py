import contextlib
import itertools
import json
import operator
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.process.command import wait_for
from tests.process.serving.serving import HOST, START_S, Serving

_ROUNDS, _REQUESTS = 3, 56
_AT_ONCE = 8
_PARALLEL = 4  # the others are left while they wait
_CONTEXT = 256
_CALM_S = 60.0
#: Threads of the master's pool for requests, which start one by one.
_POOL = 4
#: In one of the rounds: what leaks grows in each of them, what the allocator keeps of a crowd comes once.
_ALLOWED = 1.4e6
_RESET = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving]) -> Serving:
    """One whole context is all that its KV cache has: a page that stays with a request is missed by the longest one."""
    sizes = ("--context", _CONTEXT, "--kv-tokens", _CONTEXT, "--parallel", _PARALLEL)
    cluster = clusters("--min-workers", 1, *sizes)
    cluster.start_master()
    cluster.start_worker("ann")
    return cluster


def body(**fields: object) -> bytes:
    usual = {"model": "demo", "prompt": "Once", "max_tokens": 224, "temperature": 0, "ignore_eos": True}
    content = json.dumps({**usual, **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


STREAM, WHOLE, REFUSED = body(stream=True), body(), body(max_tokens=-2)
#: What a client sends, what it waits for, and whether it leaves by a reset.
LEAVE = (
    (STREAM, b"data: ", False),
    (STREAM, b"data: ", True),
    (STREAM, b"", False),
    (STREAM, b"", True),
    (WHOLE, b"", False),
    (WHOLE[:-10], b"", False),
    (REFUSED, b"max_tokens", False),
)


def leave(cluster: Serving, count: int) -> None:
    """Has `count` clients come and go, several at a time."""

    def come_and_go(way: tuple[bytes, bytes, bool]) -> None:
        sent, awaited, reset = way
        with socket.create_connection((HOST, cluster.http_port), START_S) as client:
            client.sendall(sent)
            seen = b""
            while awaited not in seen:
                seen += client.recv(4096) or pytest.fail(f"closed after {seen!r}")
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(come_and_go, itertools.islice(itertools.cycle(LEAVE), count)))
    cluster.wait_until(lambda status: status["running"] == status["queued"] == 0, _CALM_S)


def held(processes: list[psutil.Process]) -> list[int]:
    return [count for process in processes for count in (process.num_fds(), process.num_threads())]


def leave_nothing_behind(cluster: Serving) -> None:
    """The processes of this epoch are the same to its end, or one of them is no more."""
    worker = cluster.workers["ann"]
    processes = [psutil.Process(cluster.master.pid), cluster.rank_zero(), worker.agent, worker.node]
    leave(cluster, _REQUESTS)  # before which threads, buffers and caches have come to what they stay at
    most, memory = held(processes), []
    most[1] += _POOL - 1
    for _ in range(_ROUNDS):
        memory.append([process.memory_info().rss for process in processes])
        leave(cluster, _REQUESTS)
        wait_for(lambda: all(map(operator.le, held(processes), most)), _CALM_S)
    memory.append([process.memory_info().rss for process in processes])
    grown = [list(map(operator.sub, after, before)) for before, after in itertools.pairwise(memory)]
    assert max(map(min, zip(*grown, strict=True))) < _ALLOWED, grown
    with cluster.client() as client:
        answer = client.completions.create(
            model="demo", prompt="A", max_tokens=_CONTEXT - 32, temperature=0, extra_body={"ignore_eos": True}
        )
    assert answer.usage.completion_tokens == _CONTEXT - 32, "it takes every page"


@pytest.mark.timeout(900)  # a few epochs
@pytest.mark.fault(
    "H6", "after hundreds, every process has its descriptors, threads, memory and pages of before"
)
def test_hundreds_of_disconnecting_clients_leak_no_resources(
    cluster: Serving, exact: Callable[[Serving], None]
) -> None:
    over = False
    while not over:
        epoch, logged = cluster.wait_ready(2)["epoch"], len(cluster.master.log)
        with contextlib.suppress(psutil.NoSuchProcess):  # its epoch has ended: why is asked below
            leave_nothing_behind(cluster)
            over = cluster.status()["epoch"] == epoch
        if not over:  # the next one's processes are others
            cluster.wait_until(lambda status, ended=epoch: status["ready"] and status["epoch"] != ended)
            assert cluster.silences(logged), "another epoch, though nothing was lost"
    exact(cluster)
