"""Several answers to one request: choices of a prompt, prompts in a list, and prompts that are echoed."""

import threading
import time

import httpx
import openai
import pytest

from tpiedge.api.openai_format import OpenAIFormat
from tpiedge.errors import PeerLost
from tpiedge.wire.control import PromptScores
from tpiedge.wire.requests import GenerationRequest

USER = [{"role": "user", "content": "hi"}]
WORDS = ["one two", "three", "four five six"]


def speaks(service, texts=WORDS, reason="stop"):
    """The n-th choice says the n-th text, again and again."""

    def script(generation):
        number = int(generation.request.id.rpartition("-")[2])
        generation.say(*service.tokenizer.encode(texts[number % len(texts)], add_special=False))
        generation.finish(reason)

    service.script = script


def texts_of(chunks, count):
    """What each choice says in a stream, and why it ends."""
    texts, reasons = [""] * count, [None] * count
    for chunk in chunks:
        for choice in chunk.choices:
            assert reasons[choice.index] is None, "nothing follows the end of a choice"
            said = choice.delta.content if hasattr(choice, "delta") else choice.text
            texts[choice.index] += said or ""
            reasons[choice.index] = choice.finish_reason
    return texts, reasons


def test_the_choices_of_a_chat(client, service):
    speaks(service)
    answer = client.chat.completions.create(model="babbler", messages=USER, n=3)
    assert [choice.message.content for choice in answer.choices] == WORDS
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    tokens = sum(len(service.tokenizer.encode(text, add_special=False)) for text in WORDS)
    assert answer.usage.completion_tokens == tokens
    alone = client.chat.completions.create(model="babbler", messages=USER, n=2)
    assert alone.usage.prompt_tokens == answer.usage.prompt_tokens, "however many answers it has"


def test_the_choices_of_a_stream(client, service):
    speaks(service)
    chunks = list(
        client.chat.completions.create(
            model="babbler", messages=USER, n=3, stream=True, stream_options={"include_usage": True}
        )
    )
    assert texts_of(chunks, 3) == (WORDS, ["stop"] * 3)
    roles = [choice.index for chunk in chunks for choice in chunk.choices if choice.delta.role]
    assert roles == [0, 1, 2]
    assert chunks[-1].usage.completion_tokens == sum(
        len(service.tokenizer.encode(text, add_special=False)) for text in WORDS
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_list_of_prompts(client, service, stream):
    speaks(service)
    prompts = ["a b", "c"]
    found = client.completions.create(model="babbler", prompt=prompts, n=2, stream=stream)
    wanted = [WORDS[number % 3] for number in range(4)]
    if stream:
        assert texts_of(found, 4) == (wanted, ["stop"] * 4)
        return
    assert [choice.text for choice in found.choices] == wanted
    assert found.usage.prompt_tokens == sum(len(service.tokenizer.encode(prompt)) for prompt in prompts)


def test_more_choices_than_places_take_turns(client, service):
    """The cluster has four, and the request one more than are asked for at once."""
    speaks(service)
    service.retry_after_s = 0.05
    answer = client.completions.create(model="babbler", prompt=[[5]] * 17)
    assert [choice.text for choice in answer.choices] == [WORDS[number % 3] for number in range(17)]


def test_a_request_is_refused_where_not_even_one_choice_finds_a_place(client, service):
    running = [service.submit(GenerationRequest(str(number), (5,), 8)) for number in range(4)]
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="babbler", prompt="x", n=2)
    for generation in running:
        generation.finish()
        list(generation.events())
    speaks(service)
    assert client.completions.create(model="babbler", prompt="x", n=2).choices[1].text == WORDS[1]


def waiting(server):
    page = httpx.get(f"{server.url}/metrics", timeout=20, trust_env=False).text
    return next(
        float(line.split()[1]) for line in page.splitlines() if line.startswith("tpiedge_requests_waiting ")
    )


def until(server, count):
    deadline = time.monotonic() + 20
    while waiting(server) != count:
        assert time.monotonic() < deadline, waiting(server)
        time.sleep(0.01)


@pytest.mark.parametrize("ends", ["leaves", "fails", "answered"])
def test_choices_that_have_not_had_their_turn_count_as_waiting(serve, service, ends):
    """Four of twenty have a place."""
    server = serve()
    service.script = lambda generation: generation.say(5)
    service.retry_after_s = 0.01
    body = {"model": "babbler", "prompt": [[5]] * 20, "stream": True}
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=20, trust_env=False) as answer:
        lines = answer.iter_lines()
        next(lines)
        until(server, 16)
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
    until(server, 0)


def test_only_so_many_choices_may_wait(client, service):
    """What was asked for already is given up."""
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
def test_what_fails_one_choice_fails_all_and_ends_their_work(client, service, stream):
    def script(generation):
        if generation.request.id.endswith("-1"):
            generation.fail(PeerLost(1, "step 3", "killed by signal 9"))
        else:
            generation.say(5)

    service.script = script

    def ask():
        found = client.completions.create(model="babbler", prompt="x", n=2, stream=stream)
        return list(found)

    with pytest.raises(openai.APIError, match="killed by signal 9"):
        ask()
    others = [service.generations.get(timeout=20) for _ in range(2)]
    assert others[0].cancelled.wait(20)


def test_a_client_that_leaves_ends_the_work_on_all_choices(client, service):
    service.script = lambda generation: generation.say(*service.tokenizer.encode("one two three"))
    stream = client.completions.create(model="babbler", prompt="x", n=3, stream=True)
    next(iter(stream))
    stream.close()
    assert all(service.generations.get(timeout=20).cancelled.wait(20) for _ in range(3))


def test_a_choice_that_a_stop_string_ends_does_not_end_the_others(client, service):
    speaks(service, ["one two", "three two one", "four"])
    answer = client.completions.create(model="babbler", prompt="x", n=3, stop=" two")
    assert [choice.text for choice in answer.choices] == ["one", "three", "four"]


def test_what_becomes_of_a_choice_that_is_whole_fails_no_other(client, service):
    """Its generation may be cancelled while it pauses, which is an error for who still waits."""
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 16])
def test_an_echo(client, service, stream, max_tokens):
    prompt, more = "Once upon", " a time"
    ids = service.tokenizer.encode(prompt + more, add_special=False)
    begun = service.tokenizer.encode(prompt)

    def script(generation):
        if max_tokens:
            generation.say(*ids[len(service.tokenizer.encode(prompt, add_special=False)) :])
        generation.finish("length")

    service.script = script
    found = client.completions.create(
        model="babbler",
        prompt=prompt,
        echo=True,
        max_tokens=max_tokens,
        stream=stream,
        extra_body={"return_token_ids": True},
    )
    wanted = prompt + more if max_tokens else prompt
    if stream:
        chunks = list(found)
        assert texts_of(chunks, 1) == ([wanted], ["length"])
        told = [token for chunk in chunks for token in chunk.choices[0].token_ids]
    else:
        assert found.choices[0].text == wanted
        assert found.usage.prompt_tokens == len(begun)
        told = found.choices[0].token_ids
    assert told[: len(begun)] == begun


def test_the_scores_of_an_echo(client, service):
    prompt = "Once upon"
    ids = service.tokenizer.encode(prompt)

    def script(generation):
        assert generation.request.prompt_scores
        for first in range(1, len(ids)):
            likeliest = ((7, -0.25), (ids[first], -1.0 - first))
            generation.tell(PromptScores(1, generation.request.id, first, (-1.0 - first,), likeliest))
        generation.say(ids[-1])
        generation.finish("length")

    service.script = script
    answer = client.completions.create(model="babbler", prompt=prompt, echo=True, logprobs=2, max_tokens=1)
    scores = answer.choices[0].logprobs
    assert scores.token_logprobs == [None, *(-1.0 - first for first in range(1, len(ids))), -0.5]
    assert scores.top_logprobs[0] is None
    for token, top, score in zip(
        scores.tokens[1:-1], scores.top_logprobs[1:-1], scores.token_logprobs[1:-1], strict=True
    ):
        assert top[token] == score
        assert max(top.values()) == -0.25
    text = answer.choices[0].text
    for token, offset in zip(scores.tokens[1:], scores.text_offset[1:], strict=True):
        shown = token if offset else token.removeprefix(" ")
        assert text[offset : offset + len(shown)] == shown


def test_the_scores_of_a_long_echo_hold_up_nobody(client, service, monkeypatch):
    """They are streamed in small parts, and a whole answer of them is written beside the event loop."""
    ids = service.tokenizer.encode("Once upon a time there was a girl. " * 20)[:300]
    writers, whole = [], OpenAIFormat.whole

    def script(generation):
        end = len(generation.request.prompt_ids)
        for first in range(1, end, 50):
            scores = tuple(-0.5 - number for number in range(first, min(first + 50, end)))
            likeliest = tuple((rank, -0.25) for _ in scores for rank in range(20))
            generation.tell(PromptScores(1, generation.request.id, first, scores, likeliest))
        generation.finish("length")

    def noted(form, *parts):
        writers.append(threading.current_thread().name)
        return whole(form, *parts)

    service.script = script
    monkeypatch.setattr(OpenAIFormat, "whole", noted)
    asked = {"model": "babbler", "prompt": ids, "echo": True, "logprobs": 20, "max_tokens": 0}
    (choice,) = client.completions.create(**asked).choices
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    assert len(choice.logprobs.tokens) == len(ids)
    assert max(len(chunk.logprobs.tokens) for chunk in chunks) <= 64
    assert "".join(chunk.text for chunk in chunks) == choice.text
    for part in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        told = [one for chunk in chunks for one in getattr(chunk.logprobs, part)]
        assert told == getattr(choice.logprobs, part)
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    client.completions.create(**asked | {"prompt": ids[:20]})
    aside, loop = writers
    assert aside != loop
