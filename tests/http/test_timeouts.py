import contextlib
import json
import threading

import httpx
import openai
import pytest

from tpiedge.api.limits import Limits

LIMIT_S = 30.0
BODY = {"model": "babbler", "prompt": "x"}


class Work:
    """The generations of the cluster, and how many of them ran at most at once."""

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
def timing_out():
    """Makes OpenAI's client with a timeout and otherwise its defaults; it tries three times."""
    with contextlib.ExitStack() as stack:
        yield lambda server, **options: stack.enter_context(
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", **options)
        )


def blanks(lines, count):
    return [next(lines) for _ in range(count)]


def test_slow_whole_answer_starts_with_blank_lines(serve, work):
    server = serve(limits=Limits(quiet_s=0.1, ping_s=0.05))
    with httpx.stream("POST", f"{server.url}/v1/completions", json=BODY, timeout=LIMIT_S) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        lines = answer.iter_lines()
        assert blanks(lines, 3) == [""] * 3
        generation = work.wait_for(1)
        generation.say(5)
        generation.finish()
        value = json.loads("".join(lines))
    assert value["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.fault("H10", "signs of life keep it waiting")
def test_client_with_a_short_timeout_does_not_retry(serve, work, timing_out, deadline_factor, stream):
    """The client names its timeout, and gets a byte in half that time."""
    client = timing_out(serve(), timeout=4 * deadline_factor)
    got = []

    def ask():
        answer = client.completions.create(model="babbler", prompt="x", stream=stream)
        got.extend(answer if stream else [answer])

    asking = threading.Thread(target=ask)
    asking.start()
    generation = work.wait_for(1)
    assert not generation.cancelled.wait(6 * deadline_factor), "it gave up, though we live"
    generation.say(5)
    generation.finish()
    asking.join(LIMIT_S)
    assert got[-1].choices[0].finish_reason == "length"
    assert len(work.generations) == 1


@pytest.mark.fault("H10", "the tries before are cancelled")
def test_retry_cancels_the_previous_generation(serve, work, timing_out, deadline_factor):
    """A client that does not name its timeout gets no byte so early: each try ends the work of the one before."""
    said_nothing = {"x-stainless-read-timeout": openai.Omit()}
    client = timing_out(serve(), timeout=2 * deadline_factor, max_retries=1)
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model="babbler", prompt="x", extra_headers=said_nothing)
    assert len(work.generations) == 2
    assert work.most == 1
    assert all(generation.ended.wait(LIMIT_S) for generation in work.generations)


@pytest.mark.fault("H6", "the work of an answer that is not streamed ends")
def test_client_leaving_between_blank_lines_cancels_its_generation(serve, work):
    server = serve(limits=Limits(quiet_s=0.05, ping_s=0.05))
    with httpx.stream("POST", f"{server.url}/v1/completions", json=BODY, timeout=LIMIT_S) as answer:
        blanks(answer.iter_lines(), 2)
    assert work.wait_for(1).cancelled.wait(LIMIT_S)
