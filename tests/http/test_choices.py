import time

import httpx
import openai
import pytest

from tpiedge.errors import PeerLost
from tpiedge.wire.requests import GenerationRequest

WORDS = ["one two", "three", "four five six"]


def speaks(service):
    def script(generation):
        number = int(generation.request.id.rpartition("-")[2])
        generation.say(*service.tokenizer.encode(WORDS[number % len(WORDS)], add_special=False))
        generation.finish("stop")

    service.script = script


def test_choices_beyond_the_parallel_limit_take_turns(client, service):
    speaks(service)
    service.retry_after_s = 0.05
    answer = client.completions.create(model="babbler", prompt=[[5]] * 17)
    assert [choice.text for choice in answer.choices] == [WORDS[number % 3] for number in range(17)]


def test_request_is_refused_when_no_choice_finds_a_place(client, service):
    running = [service.submit(GenerationRequest(str(number), (5,), 8)) for number in range(4)]
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="babbler", prompt="x", n=2)
    for generation in running:
        generation.finish()
        list(generation.events())
    speaks(service)
    assert client.completions.create(model="babbler", prompt="x", n=2).choices[1].text == WORDS[1]


def until_waiting(server, count):
    deadline, page = time.monotonic() + 20, ""
    while f"\ntpiedge_requests_waiting {count:.1f}\n" not in page:
        assert time.monotonic() < deadline, page
        time.sleep(0.01)
        page = httpx.get(f"{server.url}/metrics", timeout=20, trust_env=False).text


@pytest.mark.parametrize("ends", ["leaves", "fails", "answered"])
def test_choices_that_are_not_submitted_yet_count_as_waiting(serve, service, ends):
    server = serve()
    service.script = lambda generation: generation.say(5)
    service.retry_after_s = 0.01
    body = {"model": "babbler", "prompt": [[5]] * 20, "stream": True}
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=20, trust_env=False) as answer:
        lines = answer.iter_lines()
        next(lines)
        until_waiting(server, 16)
        speaks(service)
        running = [service.generations.get(timeout=20) for _ in range(4)]
        if ends == "fails":
            running[0].fail(PeerLost(1, "step 3", "killed by signal 9"))
            with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
                "".join(lines)
        elif ends == "answered":
            for generation in running:
                generation.finish()
            assert "[DONE]" in "".join(lines)
    until_waiting(server, 0)
    if ends == "leaves":
        assert all(generation.cancelled.wait(20) for generation in running)


def test_too_many_waiting_choices_are_refused(client, service):
    """The generations of the refused request that had begun are cancelled."""
    service.most_postponed = 15
    service.script = lambda generation: generation.say(5)
    with pytest.raises(openai.RateLimitError, match="too many are postponed") as raised:
        client.completions.create(model="babbler", prompt=[[5]] * 20)
    assert raised.value.code == "queue_full"
    for generation in [service.generations.get(timeout=20) for _ in range(4)]:
        assert generation.cancelled.wait(20)
        generation.finish()
        list(generation.events())
    speaks(service)
    assert len(client.completions.create(model="babbler", prompt=[[5]] * 19).choices) == 19


@pytest.mark.parametrize("stream", [False, True])
def test_failed_choice_fails_the_request_and_cancels_the_others(client, service, stream):
    def script(generation):
        if generation.request.id.endswith("-1"):
            generation.fail(PeerLost(1, "step 3", "killed by signal 9"))
        else:
            generation.say(5)

    service.script = script

    with pytest.raises(openai.APIError, match="killed by signal 9"):
        list(client.completions.create(model="babbler", prompt="x", n=2, stream=stream))
    others = [service.generations.get(timeout=20) for _ in range(2)]
    assert others[0].cancelled.wait(20)


def test_later_failure_of_a_finished_choice_fails_no_other(client, service):
    """The generation of a whole choice may be cancelled while it pauses, which is no error of the request."""
    generations = []

    def fail():
        generations[0].fail(PeerLost(1, "step 3", "killed by signal 9"))
        generations[1].say(*service.tokenizer.encode("four", add_special=False))
        generations[1].finish()

    def script(generation):
        generations.append(generation)
        if len(generations) == 1:
            generation.complete = fail
        else:
            generations[0].say(*service.tokenizer.encode("one two three", add_special=False))

    service.script = script
    answer = client.completions.create(model="babbler", prompt="x", n=2, stop=" two")
    assert [choice.text for choice in answer.choices] == ["one", "four"]
