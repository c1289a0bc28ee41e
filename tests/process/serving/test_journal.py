"""A master with --journal is killed, or asked to end, in the middle of answers: the next one goes on with them."""

import contextlib
import json
import signal
import stat
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.process.command import COMMAND, wait_for
from tests.process.faulty import Fault
from tests.process.serving.serving import START_S, Serving
from tpiedge.master.journal import POISON_AFTER

KEY, OTHER_KEY = "key-of-ann", "key-of-bob"
OPTIONS = ("--journal", "--precision", "q4", "--api-key", KEY, "--api-key", OTHER_KEY)
PROMPT = "Once upon a time there was a little fox"
MESSAGES = [{"role": "user", "content": "Tell me a story"}]
BODY = {
    "model": "demo",
    "prompt": PROMPT,
    "max_tokens": 150,
    "temperature": 0.8,
    "seed": 7,
    "ignore_eos": True,
}
SEVERAL = {"n": 2, "max_tokens": 60}
FORMS: dict[str, dict[str, object]] = {
    "/v1/completions": BODY | SEVERAL | {"prompt": [PROMPT, "One day"], "echo": True, "logprobs": 2},
    "/v1/chat/completions": BODY | SEVERAL | {"messages": MESSAGES},
    "/v1/responses": {"model": "demo", "temperature": 0, "input": PROMPT, "max_output_tokens": 150},
    "/v1/messages": {"model": "demo", "temperature": 0, "messages": MESSAGES, "max_tokens": 150},
}
del FORMS["/v1/chat/completions"]["prompt"]
BROKEN = (httpx.RemoteProtocolError, httpx.ReadError)
#: Events of a stream that is under way.
UNDER_WAY = 4
#: What the last event of a stream has.
LAST = ("[DONE]", "response.completed", "response.incomplete", "message_stop")


def client(cluster: Serving, key: str = KEY) -> httpx.Client:
    return httpx.Client(
        base_url=cluster.url, headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=START_S
    )


def records(cluster: Serving) -> list[Path]:
    return sorted((cluster.state / "master" / "answers").iterdir())


def kill(cluster: Serving) -> None:
    cluster.master.popen.kill()
    assert cluster.master.wait() == -signal.SIGKILL


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving]) -> Serving:
    sizes = ("--parallel", 12, "--context", 1024)
    cluster = clusters(*OPTIONS, "--min-workers", 1, *sizes, "--drain", 600)
    cluster.start_master()
    cluster.start_worker("ann")
    return cluster


@dataclass
class Heard:
    """A stream's texts and scores over several connections, by the numbers of its choices."""

    ids: list[int] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    scores: dict[int, list[object]] = field(default_factory=lambda: defaultdict(list))
    ends: list[object] = field(default_factory=list)
    path: str = ""
    done: bool = False
    under_way: threading.Event = field(default_factory=threading.Event)

    def ask(self, http: httpx.Client, where: str, body: dict[str, object]) -> None:
        """Reads the stream to its end, or until the connection breaks."""
        with http.stream("POST", where, json=body | {"stream": True}) as answer:
            self.path = f"{where}/{answer.headers['x-request-id']}"
            with contextlib.suppress(*BROKEN):
                self.read(answer)

    def go_on(self, http: httpx.Client) -> None:
        """Reads the rest."""
        with http.stream("GET", self.path, headers={"Last-Event-ID": str(self.ids[-1])}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            self.read(answer)
        assert self.done
        assert self.ids == list(range(1, len(self.ids) + 1))

    def read(self, answer: httpx.Response) -> None:
        for line in answer.iter_lines():
            if line.startswith("id: "):
                self.ids.append(int(line.removeprefix("id: ")))
            elif line.startswith("data: "):
                text = line.removeprefix("data: ")
                self.done |= any(last in text for last in LAST)
                if text != "[DONE]":
                    self._take(json.loads(text))
            if len(self.ids) > UNDER_WAY:
                self.under_way.set()

    def _take(self, event: dict[str, Any]) -> None:
        assert not event.get("error"), event
        for choice in event.get("choices", ()):
            number = choice["index"]
            self.texts[number] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
            if choice["logprobs"] is not None:
                self.scores[number] += choice["logprobs"]["token_logprobs"]
            if choice["finish_reason"] is not None:
                self.ends.append((number, choice["finish_reason"]))
        if event.get("type") == "response.output_text.delta":
            self.texts[0] += event["delta"]
        elif event.get("type") == "content_block_delta":
            self.texts[0] += event["delta"]["text"]


@dataclass
class Whole:
    """An answer that is not streamed, whose client's connection breaks."""

    path: str = ""
    under_way: threading.Event = field(default_factory=threading.Event)

    def ask(self, http: httpx.Client) -> None:
        with http.stream("POST", "/v1/completions", json=BODY) as answer:
            self.path = f"/v1/completions/{answer.headers['x-request-id']}"
            self.under_way.set()
            with pytest.raises(BROKEN):
                answer.read()


@pytest.mark.fault(
    "P7", "killed with --journal together with its worker: both come back, and the answer goes on"
)
@pytest.mark.fault(
    "P7", "killed with --journal: an answer that is not streamed is finished, and collected by its id"
)
@pytest.mark.fault("P7", "killed with --journal: `tpiedge chat` connects again by itself")
@pytest.mark.fault(
    "P7", "killed with --journal: streams of every API, of several choices and with their prompts, go on"
)
def test_recorded_answers_of_every_api_survive_a_killed_master(cluster: Serving) -> None:
    """The weights are shared by two machines before, and by two others after: the bits are the same."""
    cluster.wait_ready(2)
    ann = cluster.workers.pop("ann")
    command = [COMMAND, "chat", "--url", cluster.url, "--api-key", KEY, "--prompt", "Tell me a story"]
    chatting = [*command, "--seed", "3", "--max-tokens", "150"]
    said = subprocess.run(chatting, check=True, capture_output=True, timeout=START_S).stdout
    with client(cluster) as http, client(cluster, OTHER_KEY) as other:
        expected = http.post("/v1/completions", json=BODY).json()
        undisturbed = {where: Heard() for where in FORMS}
        for where, heard in undisturbed.items():
            heard.ask(http, where, FORMS[where])
            assert heard.done

        whole, streams = Whole(), {where: Heard() for where in FORMS}
        with (
            cluster.crawling(),
            subprocess.Popen(chatting, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as chat,
        ):
            begun = chat.stdout.read(1)  # who has heard nothing knows no answer to come again for
            with _asking(http, whole, streams):
                for one in (whole, *streams.values()):
                    assert one.under_way.wait(START_S)
                kept = records(cluster)
                assert {stat.S_IMODE(record.stat().st_mode) for record in kept} == {0o600}
                assert not [record for record in kept if KEY in record.read_text()]
                kill(cluster)
            assert not streams["/v1/completions"].done
            assert not streams["/v1/chat/completions"].done
            ann.process.end()
            cluster.start_master()
            cluster.start_worker("bob")
            rest, notes = chat.communicate(timeout=START_S)
        assert (chat.returncode, begun + rest) == (0, said), notes
        assert b"[reconnected]" in notes
        for where, heard in streams.items():
            assert other.get(heard.path).status_code == httpx.codes.NOT_FOUND
            if not heard.done:
                heard.go_on(http)
            assert heard.texts == undisturbed[where].texts
            assert heard.scores == undisturbed[where].scores
            assert sorted(heard.ends) == sorted(undisturbed[where].ends)
        assert http.get(whole.path).json()["choices"] == expected["choices"]
        assert http.delete(whole.path).json()["deleted"]
        assert http.get(whole.path).status_code == httpx.codes.NOT_FOUND


@contextlib.contextmanager
def _asking(http: httpx.Client, whole: Whole, streams: dict[str, Heard]) -> Iterator[None]:
    with ThreadPoolExecutor(1 + len(streams)) as threads:
        pending = [threads.submit(whole.ask, http)]
        pending += [threads.submit(heard.ask, http, where, FORMS[where]) for where, heard in streams.items()]
        yield
        for one in pending:
            one.result(START_S)


@pytest.mark.fault("P7", "asked twice to end with --journal: what it does not finish, the next master does")
def test_next_master_finishes_answers_of_a_terminated_one(cluster: Serving) -> None:
    cluster.wait_ready(2)
    with client(cluster) as http:
        expected, heard = Heard(), Heard()
        expected.ask(http, "/v1/completions", BODY)
        with cluster.crawling(), ThreadPoolExecutor(1) as thread:
            pending = thread.submit(heard.ask, http, "/v1/completions", BODY)
            assert heard.under_way.wait(START_S)
            cluster.master.popen.terminate()
            wait_for(lambda: "finishing running requests" in cluster.master.log, START_S)
            cluster.master.popen.terminate()
            pending.result(START_S)
        assert cluster.master.wait() == 0
        assert not heard.done
        cluster.start_master()
        heard.go_on(http)
    assert heard.texts == expected.texts


@pytest.mark.fault(
    "P7", "asked to end with --journal while a prompt is read, three times in a row: the answer goes on"
)
def test_orderly_master_stops_do_not_count_towards_poison(clusters, tmp_path) -> None:
    held, whole = Fault("held", tmp_path / "held"), Whole()
    cluster = clusters(*OPTIONS, "--drain", 0, program=held.program)
    cluster.start_master()
    cluster.wait_ready(1)
    held.begin()
    with client(cluster) as http, ThreadPoolExecutor(1) as thread:
        thread.submit(whole.ask, http)
        assert whole.under_way.wait(START_S)
        (record,) = records(cluster)
        for _ in range(POISON_AFTER + 1):
            cluster.master.popen.terminate()
            assert cluster.master.wait() == 0
            assert b"taken up" not in record.read_bytes()
            cluster.start_master()
            wait_for(lambda: b"taken up" in record.read_bytes(), START_S)
        held.end()
        answer = http.get(whole.path).json()
        assert "choices" in answer, answer
        assert answer["choices"][0]["finish_reason"] == "length"
