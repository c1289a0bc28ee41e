"""Clients whose prompts begin alike, restarts and new plans: no client finds keys and values of another one."""

import itertools
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.process.command import wait_for
from tests.process.serving.conftest import SLOW
from tests.process.serving.serving import START_S, Serving

#: TPIEDGE_ISOLATION_REQUESTS=10000 asks so many.
REQUESTS = int(os.environ.get("TPIEDGE_ISOLATION_REQUESTS", "128"))
KEYS = tuple(f"sk-client-{number}" for number in range(8))
#: Requests of each client between two changes.
ROUND = max(4, REQUESTS // 320)
TOKENS = 4
#: Two pages of the demo model.
BEGINNING = 130
TAILS = 2
#: A client asks about one of so many topics, the first of which changes after as many requests.
TOPICS = 4
KEEP = ("--keep-context", "20MB", "--kv-disk", "20MB")


class Client:
    """Asks one thing after the other. `known`: the answers that anybody got, by prompt."""

    def __init__(self, cluster: Serving, key: str, known: dict[tuple[int, ...], list[int]]) -> None:
        self.cached = 0
        self._url, self._key, self._known = f"{cluster.url}/v1/completions", key, known
        self._model = cluster.model
        self._draws = random.Random(key)
        self._computed: list[tuple[int, ...]] = []

    def ask(self) -> None:
        """Asks a round's questions."""
        with httpx.Client(trust_env=False, timeout=START_S) as http:
            for _ in range(ROUND):
                self._ask(http, self._prompt())

    def _prompt(self) -> tuple[int, ...]:
        if self._computed and self._draws.random() < 0.25:
            return (*self._draws.choice(self._computed[-2 * TOPICS :])[: 3 * BEGINNING], 11)
        topic = random.Random(len(self._computed) // TOPICS + self._draws.randrange(TOPICS))
        beginning = topic.choices(range(10, 1000), k=BEGINNING)
        return (*beginning, 20 + self._draws.randrange(TAILS))

    def _ask(self, http: httpx.Client, prompt: tuple[int, ...]) -> None:
        body = {"model": self._model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        said = http.post(
            self._url,
            json=body | {"ignore_eos": True, "return_token_ids": True},
            headers={"Authorization": f"Bearer {self._key}"},
        )
        answer = said.raise_for_status().json()
        ids = answer["choices"][0]["token_ids"]
        cached = answer["usage"].get("prompt_tokens_details", {"cached_tokens": 0})["cached_tokens"]
        own = max((alike(prompt, one) for one in self._computed), default=0)
        assert cached <= own, (
            f"{cached} tokens of a prompt were cached; the client has computed {own} of them"
        )
        assert self._known.setdefault(prompt, ids) == ids
        self.cached += cached
        self._computed.append((*prompt, *ids))


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns how many tokens are the same at the beginning of both."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def kill_everything(cluster: Serving) -> None:
    folders = [cluster.state / "master", *(worker.state / "worker" for worker in cluster.workers.values())]
    wait_for(lambda: all(kept_files(folder) for folder in folders), START_S)
    processes = [cluster.master, *(worker.process for worker in cluster.workers.values())]
    for one in processes:
        one.popen.kill()
    for one in processes:
        one.wait()
    cluster.start_master()
    for name in cluster.workers:
        cluster.start_worker(name, token=False)
    cluster.wait_ready(3)


def kept_files(state: Path) -> list[Path]:
    return [*(state / "pages" / "kept").glob("*-*")]


def leave(cluster: Serving) -> None:
    cluster.workers["bob"].process.end()


def come_back(cluster: Serving) -> None:
    cluster.start_worker("bob", token=False)


def restart_master(cluster: Serving) -> None:
    cluster.wait_ready(3)
    cluster.master.end()
    cluster.start_master()
    cluster.wait_ready(3)


#: Changes before the questions of a round, and beside them.
BEFORE = {1: kill_everything, 3: restart_master}
BESIDE = {1: leave, 2: come_back}


@pytest.mark.timeout(max(600, REQUESTS))
@pytest.mark.fault(
    "H13", "nor on disk, after kills, restarts and new plans, by 8 clients whose prompts begin alike"
)
def test_no_client_finds_pages_of_another(clusters: Callable[..., Serving]) -> None:
    options = ("--precision", "q4", "--min-workers", 1, "--context", 512, "--kv-tokens", 1536)
    keys = [word for key in KEYS for word in ("--api-key", key)]
    cluster = clusters(*options, *KEEP, *keys)
    cluster.start_master()
    for name in ("ann", "bob"):
        cluster.start_worker(name, *KEEP, bytes_per_s=SLOW)
    cluster.wait_ready(3)
    known: dict[tuple[int, ...], list[int]] = {}
    clients = [Client(cluster, key, known) for key in KEYS]
    brought = False
    for number in range(-(-REQUESTS // (ROUND * len(KEYS)))):
        if number % 4 in BEFORE:
            BEFORE[number % 4](cluster)
        with ThreadPoolExecutor(len(KEYS)) as pool:
            asking = [pool.submit(client.ask) for client in clients]
            if number % 4 in BESIDE:
                BESIDE[number % 4](cluster)
            for one in asking:
                one.result()
        brought |= cluster.status()["totals"]["brought_tokens"] > 0
    assert all(client.cached for client in clients)
    assert brought, "nothing came from a disk"
