"""A master with --journal is killed in the middle of answers of every form that is recorded."""

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.process.serving.serving import Serving
from tests.process.serving.test_journal import (
    BROKEN,
    MESSAGES,
    OPTIONS,
    PROMPT,
    UNDER_WAY,
    client,
    kill,
    kill_during_whole_answer,
    wait_until_nothing_is_recorded,
)

DRAWN = {"model": "demo", "temperature": 0.8}
SEVERAL = {
    **DRAWN,
    "prompt": [PROMPT, "One day a bear"],
    "n": 2,
    "echo": True,
    "logprobs": 2,
    "max_tokens": 120,
    "seed": 7,
    "ignore_eos": True,
}
CHAT = {**DRAWN, "messages": MESSAGES, "n": 3, "max_tokens": 120, "seed": 7, "ignore_eos": True}
FORMS: dict[str, Mapping[str, object]] = {
    "/v1/completions": SEVERAL,
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"model": "demo", "temperature": 0, "input": PROMPT, "max_output_tokens": 400},
    "/v1/messages": {"model": "demo", "temperature": 0, "messages": MESSAGES, "max_tokens": 400},
}
ATTEMPTS = 10
#: What the last event of a stream has.
LAST = ("[DONE]", "response.completed", "response.incomplete", "message_stop")


@pytest.fixture(scope="module")
def cluster(clusters) -> Serving:
    cluster = clusters(*OPTIONS)
    cluster.start_master()
    cluster.wait_ready(1)
    return cluster


@dataclass
class Heard:
    """What came of an answer, over several connections: texts and scores of the choices, by their numbers."""

    ids: list[int] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    scores: dict[int, list[object]] = field(default_factory=lambda: defaultdict(list))
    ends: list[object] = field(default_factory=list)
    done: bool = False

    def read(self, answer: httpx.Response) -> Iterator[int]:
        """Counts the events."""
        for line in answer.iter_lines():
            if line.startswith("id: "):
                self.ids.append(int(line.removeprefix("id: ")))
            if not line.startswith("data: "):
                continue
            text = line.removeprefix("data: ")
            self.done |= any(last in text for last in LAST)
            if text != "[DONE]":
                self._take(json.loads(text))
            yield len(self.ids)

    def _take(self, event: dict[str, Any]) -> None:
        assert "error" not in event or event["error"] is None, event
        for choice in event.get("choices", ()):
            number = choice["index"]
            self.texts[number] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
            if choice["logprobs"] is not None:
                scores = choice["logprobs"]
                self.scores[number] += zip(
                    scores["text_offset"], scores["token_logprobs"], scores["top_logprobs"], strict=True
                )
            if choice["finish_reason"] is not None:
                self.ends.append((number, choice["finish_reason"]))
        if event.get("type") == "response.output_text.delta":
            self.texts[0] += event["delta"]
        elif event.get("type") == "content_block_delta":
            self.texts[0] += event["delta"]["text"]


def undisturbed(http: httpx.Client, where: str) -> Heard:
    heard = Heard()
    with http.stream("POST", where, json={**FORMS[where], "stream": True}) as answer:
        for _ in heard.read(answer):
            pass
    assert heard.done
    return heard


def kill_during(cluster: Serving, http: httpx.Client, where: str) -> tuple[str, Heard]:
    """Asks for a stream, and kills the master in the middle of it. Returns its path and what came.

    Some forms cannot ask for answers that are long whatever the model says: where one was whole before, as on a busy
    machine, the next is tried."""
    for _ in range(ATTEMPTS):
        heard = Heard()
        with (
            cluster.crawling(),
            http.stream("POST", where, json={**FORMS[where], "stream": True}) as answer,
        ):
            path = f"{where}/{answer.headers['x-request-id']}"
            events = heard.read(answer)
            while next(events) < UNDER_WAY:
                pass
            kill(cluster)
            with contextlib.suppress(*BROKEN):
                for _ in events:
                    pass
        if not heard.done:
            return path, heard
        cluster.start_master()
        http.delete(path)  # it may not have known yet that all was sent
    pytest.fail("every answer was whole before the master was killed")


@pytest.mark.fault(
    "P7",
    "killed with --journal: streams of several choices, with their prompts, and of other APIs are resumed",
)
@pytest.mark.parametrize("where", FORMS)
def test_a_stream_of_any_form_goes_on_after_its_last_event(cluster: Serving, where: str):
    """Choices come in another order than without the kill, each with the same text."""
    with client(cluster) as http:
        expected = undisturbed(http, where)
        wait_until_nothing_is_recorded(cluster, http)
        path, heard = kill_during(cluster, http, where)
        cluster.start_master()
        with http.stream("GET", path, headers={"Last-Event-ID": str(heard.ids[-1])}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for _ in heard.read(answer):
                pass
        assert heard.done
        assert heard.ids == list(range(1, len(heard.ids) + 1))
        assert heard.texts == expected.texts
        assert heard.scores == expected.scores
        assert sorted(heard.ends) == sorted(expected.ends)
        wait_until_nothing_is_recorded(cluster, http)


@pytest.mark.fault(
    "P7", "killed with --journal: an answer of several choices that is not streamed is finished, all of them"
)
def test_all_choices_of_a_whole_answer_are_collected(cluster: Serving):
    where, body = "/v1/completions", {**SEVERAL, "max_tokens": 400}
    with client(cluster) as http:
        expected = http.post(where, json=body).json()
        wait_until_nothing_is_recorded(cluster, http)
        path = kill_during_whole_answer(cluster, http, where, body)
        cluster.start_master()
        collected = http.get(path).json()
        assert collected["choices"] == expected["choices"]
        assert collected["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]
        wait_until_nothing_is_recorded(cluster, http)
