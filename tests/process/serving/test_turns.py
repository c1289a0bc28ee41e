"""Two clients with keys of their own, which nobody sees: one floods the cluster, and keeps the other neither out nor
waiting."""

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import psutil
import pytest

from tests.process.command import wait_for
from tests.process.serving.serving import HOST, Serving
from tpiedge.master.request_queue import QUEUE_LIMIT

FLOOD, OTHER = "sk-flood", "sk-other"
PARALLEL, CHOICES, LONG = 2, 16, 100
LIMIT_S = 90.0


@pytest.fixture
def cluster(clusters: Callable[..., Serving], tmp_path: Path) -> Serving:
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text(f"flood: {FLOOD}\nother: {OTHER}\n")
    # What nobody guesses takes a step for each token.
    options = ("--api-key-file", keys, "--parallel", PARALLEL, "--speculate", "off")
    cluster = clusters("--min-workers", 1, *options, "--context", 512, "--kv-tokens", 2048)
    master = cluster.start_master()
    cluster.start_worker("ann")
    cluster.wait_ready(2)
    for one in (psutil.Process(master.pid), *master.children()):
        with contextlib.suppress(psutil.NoSuchProcess):  # a child that had little to do
            assert not any("sk-" in word for word in one.cmdline())
    return cluster


@contextlib.contextmanager
def flooded(cluster: Serving, key: str = FLOOD) -> Iterator[None]:
    """The cluster crawls, and one client has all places in its queue that it can have."""
    with cluster.crawling(), contextlib.ExitStack() as stack:
        # Those that run take no place in the queue: none is to be asked for before they do, and none beyond the places.
        for count in [PARALLEL, *[CHOICES] * (QUEUE_LIMIT // CHOICES)]:
            stack.enter_context(_flood(cluster, key, count))
            cluster.wait_until(lambda seen: seen["running"] == PARALLEL)
        cluster.wait_until(lambda seen: (seen["running"], seen["queued"]) == (PARALLEL, QUEUE_LIMIT))
        yield


def _flood(cluster: Serving, key: str, count: int) -> socket.socket:
    """A connection on which a long prompt asks for so many long answers, which nobody reads."""
    prompts = [" ".join(["fox"] * LONG)] * count
    body = json.dumps({"model": "demo", "prompt": prompts, "max_tokens": 300, "ignore_eos": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection((HOST, cluster.port + 4), LIMIT_S)
    connection.sendall(head.encode() + body)
    return connection


def requests(cluster: Serving, *, long: bool) -> list[dict]:
    """Those with long prompts, or the others."""
    return [one for one in cluster.picture()["requests"] if (one["prompt_tokens"] > LONG) == long]


@pytest.mark.thin
@pytest.mark.fault("H8", "one key floods with long prompts and choices: another one is answered before them")
def test_a_key_that_floods_keeps_no_other_waiting(cluster: Serving) -> None:
    options = {"base_url": f"{cluster.url}/v1", "max_retries": 0, "timeout": LIMIT_S}
    with (
        openai.OpenAI(api_key=FLOOD, **options) as flood,
        openai.OpenAI(api_key=OTHER, **options) as other,
        ThreadPoolExecutor(1) as threads,
        flooded(cluster),
    ):
        words = f"{QUEUE_LIMIT} requests are waiting already, {QUEUE_LIMIT} of this client"
        with pytest.raises(openai.RateLimitError, match=words) as refused:
            flood.completions.create(model="demo", prompt="Once", max_tokens=2)
        assert refused.value.response.headers["retry-after"] == "1"
        answer = threads.submit(other.completions.create, model="demo", prompt="Once", max_tokens=2)
        wait_for(lambda: answer.done() or requests(cluster, long=False), LIMIT_S)
        running = [one["id"] for one in requests(cluster, long=True) if one["state"] != "queued"]
        any(
            cluster.administer("DELETE", f"requests/{name}").is_success for name in running
        )  # one that goes on
        assert answer.result(LIMIT_S).usage.completion_tokens == 2
        assert cluster.status()["queued"] > QUEUE_LIMIT // 2, "those that came before it still wait"
    cluster.wait_until(lambda seen: (seen["running"], seen["queued"]) == (0, 0))
    assert "sk-" not in cluster.logs()
