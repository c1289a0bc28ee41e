"""A cluster names the machines that keep prompts on disk, and clears them."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.process.command import run_command
from tests.process.serving.serving import START_S, Serving
from tpiedge.kv.page_folder import KEPT, PARKED

BLOCK = 4096
PROMPT = "Once upon a time there was a small house by the sea. " * 12


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving]) -> Iterator[Serving]:
    """ann gives disk space to kept context, bob to waiting conversations alone."""
    flags = ("--keep-context", "1GB", "--kv-disk", "100MB", "--share-prefixes")
    cluster = clusters("--min-workers", 2, "--context", 128, *flags)
    cluster.start_master()
    cluster.start_worker("ann", "--keep-context", "500MB", "--kv-disk", "5MB")
    cluster.start_worker("bob", "--kv-disk", "6MB")
    cluster.wait_ready(3)
    return cluster


def folders(cluster: Serving) -> dict[str, Path]:
    workers = {name: worker.state / "worker" / "pages" for name, worker in cluster.workers.items()}
    return {"master": cluster.state / "master" / "pages", **workers}


def left(cluster: Serving) -> None:
    """Puts two kept pages and a parked one on each machine's disk, as nodes do."""
    for folder in folders(cluster).values():
        for kind, count in ((KEPT, 2), (PARKED, 1)):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                (folder / kind / f"{number:032x}-1").write_bytes(bytes(BLOCK))


def tpiedge(cluster: Serving, *words: object, status: int = 0) -> dict:
    ended = run_command("cache", *words, "--json", "--state", cluster.state)
    assert ended.status == status, ended.err
    return {one["host"] or one["name"]: one for one in json.loads(ended.out)["machines"]}


def test_nodes_say_who_does_not_keep_context(cluster: Serving) -> None:
    status = cluster.status()
    limits = {node["host"] or "master": (node["keep_bytes"], node["park_bytes"]) for node in status["nodes"]}
    assert limits == {"master": (10**9, 10**8), "ann": (5 * 10**8, 5 * 10**6), "bob": (0, 6 * 10**6)}
    assert (status["keeps_context"], status["not_parked"]) == (False, "")
    shown = run_command("nodes", "--state", cluster.state).out
    assert "prompts are not kept on disk" in shown
    assert "start the worker on bob with --keep-context SIZE" in shown


def test_page_files_are_listed_and_cleared_on_every_machine(cluster: Serving) -> None:
    left(cluster)
    found = tpiedge(cluster, "ls")
    assert found.keys() == {"master", "ann", "bob"}
    for one in found.values():
        assert (one["kept"], one["parked"]["pages"]) == ({"pages": 2, "nbytes": 2 * BLOCK}, 1)
        assert one["why"] == ""
    assert (found["ann"]["keep_bytes"], found["bob"]["keep_bytes"]) == (5 * 10**8, 0)
    own = tpiedge(cluster, "clear")
    assert [own[name]["kept"]["pages"] for name in ("master", "worker")] == [2, 0]
    found = tpiedge(cluster, "clear", "--all-nodes")
    assert [found[name]["kept"]["pages"] for name in ("master", "ann", "bob")] == [0, 2, 2]
    assert not [path for folder in folders(cluster).values() for path in folder.rglob("*-1")]
    cluster.ask("Once", 4)


def test_a_machine_that_is_away_is_named_and_the_others_are_cleared(cluster: Serving) -> None:
    cluster.wait_ready(3)
    left(cluster)
    process = cluster.workers["bob"].process
    process.popen.send_signal(signal.SIGSTOP)
    try:
        cluster.wait_until(lambda status: cluster.node("bob")["state"] == "lost", START_S)
        ended = run_command("cache", "clear", "--all-nodes", "--state", cluster.state)
        assert ended.status == 3
        assert "bob: it is away; type 'tpiedge cache clear' there" in ended.err
        assert "ann: 3 pages deleted" in ended.out
        remain = {name: len([*folder.rglob("*-1")]) for name, folder in folders(cluster).items()}
        assert remain == {"master": 0, "ann": 0, "bob": 3}
    finally:
        process.popen.send_signal(signal.SIGCONT)
    cluster.wait_ready(3)


def test_secret_of_kept_context_survives_the_master_and_is_its_owners(cluster: Serving) -> None:
    (path,) = (cluster.state / "master").glob("kept-context*")
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    cluster.master.end()
    cluster.start_master()
    cluster.wait_ready(3)
    assert path.read_bytes() == before
    for worker in cluster.workers.values():
        assert not [*worker.state.rglob("kept-context*")], "workers never store it"


def cached(cluster: Serving, key: str) -> int:
    """Asks with the key, and returns how many tokens of the prompt were not computed."""
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key=key, max_retries=0, timeout=60) as client:
        answer = client.completions.create(model="demo", prompt=PROMPT, max_tokens=4, temperature=0)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    return answer.usage.prompt_tokens_details.cached_tokens or 0


def kept_pages(cluster: Serving) -> list[int]:
    return [one["kept"]["pages"] for one in cluster.administer("GET", "cache").json()["machines"]]


def test_prompts_outlive_the_master_for_their_own_client_alone(clusters: Callable[..., Serving]) -> None:
    keys = ("--api-key", "none", "--api-key", "other")
    flags = ("--keep-context", "1GB", "--context", 512, "--speculate", "off")
    cluster = clusters("--min-workers", 1, *keys, *flags)
    cluster.start_master()
    cluster.start_worker("ann", "--keep-context", "1GB")
    cluster.wait_ready(2)
    assert cached(cluster, "none") == 0
    cluster.wait_until(lambda _: min(kept_pages(cluster)) > 0)
    cluster.master.end(signal.SIGKILL)
    cluster.start_master()
    cluster.wait_ready(2)
    assert cached(cluster, "other") == 0
    assert cached(cluster, "none") >= 64
    headers = {"Authorization": "Bearer none"}
    metrics = httpx.get(f"{cluster.url}/metrics", headers=headers, trust_env=False).text
    assert re.search(r"^tpiedge_brought_prompt_tokens_total [1-9]", metrics, re.MULTILINE)
    assert "tpiedge_keeps_context 1.0" in metrics
