"""OpenAI's client for JavaScript in a real Node: what it hears of answers, refusals, and answers that break off."""

import json
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.serving.conftest import PROMPT, TOKENS
from tests.process.serving.serving import START_S, Serving
from tests.process.serving.test_turns import flooded
from tests.unit.page.test_page_modules import node_version

LIMIT_S = 120.0
_OLDEST = 20
_PROJECT = Path(__file__).with_name("openai_node")
LONG = 900

pytestmark = [
    pytest.mark.skipif(
        node_version() < _OLDEST, reason=f"node: there is no node of version {_OLDEST} or newer"
    ),
    pytest.mark.skipif(shutil.which("npm") is None, reason="software: npm is not on this computer"),
]


class Client:
    """The client's process. What it is told to ask is asked one after the other."""

    def __init__(self, folder: Path, url: str) -> None:
        self._node = subprocess.Popen(
            ["node", folder / "client.mjs", f"{url}/v1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._heard: queue.Queue[dict] = queue.Queue()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def ask(
        self, prompt: str, tokens: int, retries: int = 0, *, stream: bool = False, pieces: int = 0
    ) -> None:
        """A stream is left after so many `pieces`, if any are given."""
        asked = {"prompt": prompt, "tokens": tokens, "retries": retries, "stream": stream, "pieces": pieces}
        assert self._node.stdin is not None
        self._node.stdin.write(json.dumps(asked) + "\n")
        self._node.stdin.flush()

    def hear(self) -> dict:
        return self._heard.get(timeout=LIMIT_S)

    def close(self) -> None:
        self._node.kill()
        self._thread.join()
        self._node.communicate()

    def _listen(self) -> None:
        assert self._node.stdout is not None
        for line in self._node.stdout:
            self._heard.put(json.loads(line))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client") / "openai_node"
    shutil.copytree(_PROJECT, folder)
    npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(npm, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode:
        pytest.skip(f"downloads: npm cannot install openai here: {done.stderr.strip().partition(chr(10))[0]}")
    return folder


@pytest.fixture
def client(installed: Path, cluster: Serving) -> Iterator[Client]:
    made = Client(installed, cluster.url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving]) -> Serving:
    """Without both machines it serves nothing, and says so at once."""
    options = ("--parallel", 2, "--speculate", "off", "--recovery-grace", 0)
    cluster = clusters("--min-workers", 1, *options, "--context", 1024, "--kv-tokens", 2048)
    cluster.start_master()
    cluster.start_worker("ann")
    cluster.wait_ready(2)
    return cluster


def exact(client: Client, expected: str) -> None:
    for stream in (False, True):
        client.ask(PROMPT, TOKENS, stream=stream)
        if stream:
            assert client.hear() == {"begun": True}
        assert client.hear() == {"text": expected, "reason": "length"}


def test_streams_and_whole_answers_and_one_that_it_leaves(
    cluster: Serving, client: Client, expected: str
) -> None:
    exact(client, expected)
    with cluster.crawling():
        client.ask(PROMPT, LONG, stream=True, pieces=3)
        assert client.hear() == {"begun": True}
        left = client.hear()
        assert (left["reason"], "error" in left) == (None, False)
        assert expected.startswith(left["text"])
        cluster.wait_until(lambda seen: seen["running"] == 0)
    assert cluster.status()["totals"]["cancelled"] == 1
    exact(client, expected)


@pytest.mark.fault(
    "H8", "OpenAI's client for JavaScript is told to come again, and is answered then by itself"
)
def test_a_full_queue_is_asked_again(cluster: Serving, client: Client, expected: str) -> None:
    refused = cluster.status()["totals"]["refused"]
    with flooded(cluster):
        client.ask(PROMPT, TOKENS)
        error = client.hear()["error"]
        assert (error["name"], error["status"], error["code"]) == ("RateLimitError", 429, "queue_full")
        client.ask(PROMPT, TOKENS, retries=50)
        cluster.wait_until(lambda seen: seen["totals"]["refused"] > refused + 1)
    assert client.hear() == {"text": expected, "reason": "length"}


@pytest.mark.fault(
    "H9", "OpenAI's client for JavaScript raises the error with its cause, and asks again later"
)
def test_an_answer_that_breaks_off_and_a_cluster_that_is_asked_again(
    cluster: Serving, client: Client, expected: str
) -> None:
    with cluster.crawling():
        client.ask(PROMPT, LONG, stream=True)
        assert client.hear() == {"begun": True}
        cluster.workers["ann"].process.end(signal.SIGKILL)
        broken = client.hear()
    assert (broken["error"]["name"], broken["error"]["code"]) == ("APIError", "unavailable")
    assert "the cluster serves nothing now: 0 of 1 worker here" in broken["error"]["message"]
    assert broken["reason"] is None
    assert len(broken["text"]) > 0
    refused = cluster.status()["totals"]["refused"]
    client.ask(PROMPT, TOKENS)
    error = client.hear()["error"]
    assert (error["name"], error["status"]) == ("InternalServerError", 503)
    client.ask(PROMPT, TOKENS, retries=50)
    cluster.wait_until(lambda seen: seen["totals"]["refused"] > refused + 1)
    cluster.start_worker("ann", token=False)
    assert client.hear() == {"text": expected, "reason": "length"}


def test_a_master_that_is_started_again_is_connected_to_again(
    cluster: Serving, client: Client, expected: str
) -> None:
    exact(client, expected)
    cluster.master.end()
    client.ask(PROMPT, TOKENS)
    assert client.hear()["error"]["name"] == "APIConnectionError"
    client.ask(PROMPT, TOKENS, retries=50)
    cluster.start_master()
    assert client.hear() == {"text": expected, "reason": "length"}
    cluster.wait_ready(2, START_S)
    exact(client, expected)
