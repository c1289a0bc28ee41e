"""A thousand clients leave without their answers, or are refused: nothing stays of them in any process."""

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

_ROUNDS, _REQUESTS = 4, 250
#: Before which threads, buffers and caches have come to what they stay at.
_FIRST = 100
_AT_ONCE = 8
_PARALLEL = 4  # the others are left while they wait
_CONTEXT = 1024
_CALM_S = 60.0
#: In one of the rounds: what leaks grows in each of them, what the allocator keeps of a crowd comes once.
_ALLOWED = 2e6
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
    usual = {"model": "demo", "prompt": "Once", "max_tokens": 900, "temperature": 0, "ignore_eos": True}
    content = json.dumps({**usual, **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


STREAM, WHOLE, REFUSED = body(stream=True), body(), body(max_tokens=-2)


def read_until(client: socket.socket, words: bytes) -> None:
    """Until they have come."""
    seen = b""
    while words not in seen:
        part = client.recv(4096)
        assert part, seen
        seen += part


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def in_the_stream(client: socket.socket) -> None:
    client.sendall(STREAM)
    read_until(client, b"data: ")


def by_a_reset_in_the_stream(client: socket.socket) -> None:
    in_the_stream(client)
    reset(client)


def before_the_stream(client: socket.socket) -> None:
    client.sendall(STREAM)


def by_a_reset_before_the_stream(client: socket.socket) -> None:
    client.sendall(STREAM)
    reset(client)


def before_a_whole_answer(client: socket.socket) -> None:
    client.sendall(WHOLE)


def half_closed(client: socket.socket) -> None:
    in_the_stream(client)
    client.shutdown(socket.SHUT_WR)


def in_the_body(client: socket.socket) -> None:
    client.sendall(WHOLE[:-10])


def refused(client: socket.socket) -> None:
    client.sendall(REFUSED)
    read_until(client, b"max_tokens")


LEAVE: tuple[Callable[[socket.socket], None], ...] = (
    in_the_stream,
    by_a_reset_in_the_stream,
    before_the_stream,
    by_a_reset_before_the_stream,
    before_a_whole_answer,
    half_closed,
    in_the_body,
    refused,
)


def leave(cluster: Serving, count: int) -> None:
    """So many clients come and go, some at a time."""

    def come_and_go(way: Callable[[socket.socket], None]) -> None:
        with socket.create_connection((HOST, cluster.port + 4), START_S) as client:
            way(client)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(come_and_go, itertools.islice(itertools.cycle(LEAVE), count)))
    cluster.wait_until(lambda status: status["running"] == status["queued"] == 0, _CALM_S)


def held(processes: list[psutil.Process]) -> list[int]:
    """Descriptors and threads."""
    return [count for process in processes for count in (process.num_fds(), process.num_threads())]


def resident(processes: list[psutil.Process]) -> list[int]:
    return [process.memory_info().rss for process in processes]


def takes_every_page(cluster: Serving) -> bool:
    with cluster.client() as client:
        answer = client.completions.create(
            model="demo", prompt="A", max_tokens=_CONTEXT - 32, temperature=0, extra_body={"ignore_eos": True}
        )
    return answer.usage.completion_tokens == _CONTEXT - 32


def leave_nothing_behind(cluster: Serving) -> None:
    """The processes of this epoch are the same to its end, or one of them is no more."""
    worker = cluster.workers["ann"]
    processes = [psutil.Process(cluster.master.pid), cluster.rank_zero(), worker.agent, worker.node]
    leave(cluster, _FIRST)
    before = held(processes)
    memory = [resident(processes)]
    for _ in range(_ROUNDS):
        leave(cluster, _REQUESTS)
        wait_for(lambda: all(map(operator.le, held(processes), before)), _CALM_S)
        memory.append(resident(processes))
    grown = [list(map(operator.sub, after, before)) for before, after in itertools.pairwise(memory)]
    assert max(map(min, zip(*grown, strict=True))) < _ALLOWED, grown
    assert takes_every_page(cluster)


@pytest.mark.timeout(900)  # a few epochs
@pytest.mark.fault(
    "H6", "after a thousand, every process has its descriptors, threads, memory and pages of before"
)
def test_a_thousand_clients_leave_nothing_behind(cluster: Serving, exact: Callable[[Serving], None]) -> None:
    over = False
    while not over:
        epoch, logged = cluster.wait_ready(2)["epoch"], len(cluster.master.log)
        cluster.wait_stood_by()  # what stands by has pipes
        with contextlib.suppress(psutil.NoSuchProcess):  # its epoch has ended: why is asked below
            leave_nothing_behind(cluster)
            over = cluster.status()["epoch"] == epoch
        if not over:  # the next one's processes are others, and begin with another thousand
            cluster.wait_until(lambda status, ended=epoch: status["ready"] and status["epoch"] != ended)
            assert cluster.silences(logged), "another epoch, though nothing was lost"
    exact(cluster)
