"""Clients that wait: for whole answers, with short timeouts, with tries one after the other."""

import contextlib
import json
import threading

import httpx
import openai
import pytest

from tpiedge.api.limits import Limits
from tpiedge.errors import PeerLost

LIMIT_S = 30.0
BODY = {"model": "babbler", "prompt": "x"}


class Work:
    """What the cluster was given: every generation, and how many of them ran when the next one came."""

    def __init__(self, service):
        self.generations = []
        self.most = 0
        self.arrived = threading.Condition()
        service.script = self._take

    def _take(self, generation):
        with self.arrived:
            running = [one for one in self.generations if not one.cancelled.is_set()]
            self.most = max(self.most, len(running) + 1)
            self.generations.append(generation)
            self.arrived.notify_all()

    def wait_for(self, count):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.generations) >= count, LIMIT_S)
        return self.generations[count - 1]


@pytest.fixture
def work(service):
    return Work(service)


@pytest.fixture
def impatient():
    """OpenAI's client as it is, except for its timeout; it tries three times."""
    with contextlib.ExitStack() as stack:
        yield lambda server, **options: stack.enter_context(
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", **options)
        )


def blanks(lines, count):
    return [next(lines) for _ in range(count)]


def test_blank_lines_come_before_a_whole_answer_that_takes_long(serve, work):
    server = serve(limits=Limits(quiet_s=0.1, ping_s=0.05))
    with (
        httpx.Client(base_url=server.url, timeout=LIMIT_S) as http,
        http.stream("POST", "/v1/completions", json=BODY) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        lines = answer.iter_lines()
        assert blanks(lines, 3) == [""] * 3
        generation = work.wait_for(1)
        generation.say(5)
        generation.finish()
        value = json.loads("".join(lines))
    assert value["choices"][0]["finish_reason"] == "length"


def test_tokens_that_are_not_shown_yet_do_not_count_as_a_sign_of_life(serve, work):
    """A whole answer is silent until its end, however fast its tokens come."""
    server = serve(limits=Limits(quiet_s=0.1, ping_s=0.1))
    saying = threading.Event()

    def speak(generation):
        while not saying.wait(0.01):
            generation.say(5)
        generation.finish()

    with (
        httpx.Client(base_url=server.url, timeout=LIMIT_S) as http,
        http.stream("POST", "/v1/completions", json=BODY) as answer,
    ):
        speaker = threading.Thread(target=speak, args=(work.wait_for(1),))
        speaker.start()
        lines = answer.iter_lines()
        try:
            assert blanks(lines, 3) == [""] * 3
        finally:
            saying.set()
            speaker.join(LIMIT_S)
        assert json.loads("".join(lines))["choices"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.fault("H10", "signs of life keep it waiting")
def test_a_client_with_a_timeout_of_some_seconds_asks_once(serve, work, impatient, patience, stream):
    """With the limits as they are: the client says how long it waits, and hears something in half that time."""
    client = impatient(serve(), timeout=4 * patience)
    got = []

    def ask():
        answer = client.completions.create(model="babbler", prompt="x", stream=stream)
        got.extend(answer if stream else [answer])

    asking = threading.Thread(target=ask)
    asking.start()
    generation = work.wait_for(1)
    assert not generation.cancelled.wait(6 * patience), "it gave up, though we live"
    generation.say(5)
    generation.finish()
    asking.join(LIMIT_S)
    assert got[-1].choices[0].finish_reason == "length"
    assert len(work.generations) == 1


@pytest.mark.fault("H10", "the tries before are cancelled")
def test_a_chain_of_tries_has_one_generation_at_a_time(serve, work, impatient, patience):
    """A client that does not say how long it waits hears nothing so early: each try ends the work of the one before."""
    said_nothing = {"x-stainless-read-timeout": openai.Omit()}
    client = impatient(serve(), timeout=2 * patience, max_retries=1)
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model="babbler", prompt="x", extra_headers=said_nothing)
    assert len(work.generations) == 2
    assert work.most == 1
    assert all(generation.ended.wait(LIMIT_S) for generation in work.generations)


def test_an_early_failure_keeps_its_status(serve, work, impatient):
    client = impatient(serve(limits=Limits(quiet_s=LIMIT_S)), timeout=LIMIT_S, max_retries=0)
    failing = threading.Thread(target=lambda: work.wait_for(1).fail(PeerLost(1, "step 3", "killed")))
    failing.start()
    with pytest.raises(openai.InternalServerError) as raised:
        client.completions.create(model="babbler", prompt="x")
    assert raised.value.code == "worker_lost"
    failing.join(LIMIT_S)


@pytest.mark.parametrize("chat", [False, True])
def test_a_late_failure_is_what_the_answer_says(serve, work, impatient, chat):
    """The status is sent: an answer without choices, which nobody takes for one, tells why."""
    begun = threading.Event()  # the answer has, with a blank line
    http_client = httpx.Client(event_hooks={"response": [lambda _answer: begun.set()]}, timeout=LIMIT_S)
    client = impatient(serve(limits=Limits(quiet_s=0.1)), timeout=LIMIT_S, http_client=http_client)

    def fail():
        generation = work.wait_for(1)
        generation.say(5)
        assert begun.wait(LIMIT_S)
        generation.fail(PeerLost(1, "step 3", "killed by signal 9"))

    failing = threading.Thread(target=fail)
    failing.start()
    answer = (
        client.chat.completions.create(model="babbler", messages=[{"role": "user", "content": "hi"}])
        if chat
        else client.completions.create(model="babbler", prompt="x")
    )
    failing.join(LIMIT_S)
    assert answer.choices is None
    assert answer.error["code"] == "worker_lost"
    assert "killed by signal 9" in answer.error["message"]
    assert answer.id.startswith("chatcmpl-" if chat else "cmpl-")
    assert answer.tokens == 1
    assert len(work.generations) == 1


@pytest.mark.fault("H6", "the work of an answer that is not streamed ends")
def test_a_client_that_leaves_between_two_blank_lines_ends_the_work(serve, work):
    server = serve(limits=Limits(quiet_s=0.05, ping_s=0.05))
    with (
        httpx.Client(base_url=server.url, timeout=LIMIT_S) as http,
        http.stream("POST", "/v1/completions", json=BODY) as answer,
    ):
        blanks(answer.iter_lines(), 2)
    assert work.wait_for(1).cancelled.wait(LIMIT_S)


@pytest.mark.parametrize(("said", "quiet_s"), [("1", 0.5), ("0.1", 0.25), ("600", 30.0)])
def test_what_a_patience_makes_of_the_limits(said, quiet_s):
    assert Limits().heard_within(float(said)).quiet_s == quiet_s


@pytest.mark.parametrize("said", ["", "soon", "nan", "inf", "-1", "0", "1e9", "9" * 400])
def test_a_patience_that_makes_no_sense_is_none(serve, service, said):
    service.script = lambda generation: generation.finish()
    answer = httpx.post(
        f"{serve().url}/v1/completions",
        json=BODY,
        headers={"x-stainless-read-timeout": said},
        timeout=LIMIT_S,
    )
    assert answer.status_code == 200
