"""Prompts and bodies that are too large: refused with the numbers, through the real server and OpenAI's client."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import openai
import pytest

from tpiedge.api.completion_request import read_completion
from tpiedge.api.errors import PromptTooLong
from tpiedge.api.limits import Limits
from tpiedge.units import MIB
from tpiedge.wire.limits import MAX_PROMPT_TOKENS

CONTEXT = 512
LIMIT_S = 20.0


@pytest.fixture
def asker(serve):
    """OpenAI's client; it would try again where that could help."""
    server = serve(limits=replace(Limits.of_context(CONTEXT), linger_s=LIMIT_S))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=20) as client:
        yield client


def refusal(ask):
    with pytest.raises(openai.APIStatusError) as raised:
        ask()
    return raised.value


def assert_too_long(error, *numbers):
    assert (error.status_code, error.code) == (400, "context_length_exceeded")
    assert all(str(number) in error.message for number in numbers), error.message


@pytest.mark.parametrize("stream", [False, True])
def test_more_tokens_than_the_context(asker, service, stream):
    tokens = [5] * (CONTEXT + 88)
    error = refusal(lambda: asker.completions.create(model="babbler", prompt=tokens, stream=stream))
    assert_too_long(error, CONTEXT, 600)
    assert error.param == "prompt"
    assert service.generations.empty()


@pytest.mark.fault("H3", "400 with the limit; it is not even tokenized to its end")
def test_more_text_than_the_context(asker):
    ask = asker.chat.completions.create
    error = refusal(lambda: ask(model="babbler", messages=[{"role": "user", "content": "once " * 2000}]))
    assert_too_long(error, f"more than {CONTEXT} tokens")  # not counted to the end
    error = refusal(lambda: ask(model="babbler", messages=[{"role": "user", "content": "x" * 40_000}]))
    assert_too_long(error, CONTEXT, 40_000)  # by its characters: not even tokenized


@pytest.mark.fault("H3", "however long it takes to make tokens of a prompt, others are answered meanwhile")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "babbler", "prompt": "once"}),
        ("/v1/chat/completions", {"model": "babbler", "messages": [{"role": "user", "content": "once"}]}),
        ("/tokenize", {"prompt": "once"}),
        ("/detokenize", {"tokens": [5]}),
    ],
)
def test_while_a_prompt_is_tokenized_others_are_answered(serve, service, monkeypatch, path, body):
    """Neither it nor what is rendered or parsed before it holds the event loop up."""
    begun, go_on = threading.Event(), threading.Event()

    class Stuck:
        """The tokenizer, which waits at each thing that it does."""

        def __getattr__(self, name):
            begun.set()
            assert go_on.wait(LIMIT_S)
            return getattr(tokenizer, name)

    tokenizer = service.tokenizer
    monkeypatch.setattr(service, "tokenizer", Stuck())
    service.script = lambda generation: generation.finish("stop")
    url = serve().url
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{url}{path}", json=body, timeout=LIMIT_S)
        try:
            assert begun.wait(LIMIT_S)
            assert httpx.get(f"{url}/health", timeout=LIMIT_S).status_code == 200
            assert not asked.done()
        finally:
            go_on.set()
        assert asked.result().status_code == 200


def test_prompt_and_answer_together(asker, service):
    """The answer gets what the prompt leaves."""
    service.script = lambda generation: generation.finish("length")
    answer = asker.completions.create(model="babbler", prompt=[5] * 500, max_tokens=13)
    assert answer.choices[0].finish_reason == "length"
    assert service.generations.get(timeout=20).request.max_tokens == CONTEXT - 500


def test_more_tokens_than_the_wire_takes(service):
    """Where the context is larger than what one message to rank 0 may carry."""
    service.max_sequence = MAX_PROMPT_TOKENS + 1000
    asked = {"model": "babbler", "prompt": [5] * MAX_PROMPT_TOKENS}
    assert len(read_completion(asked, service, "x").choices[0].request.prompt_ids) == MAX_PROMPT_TOKENS
    with pytest.raises(
        PromptTooLong, match=f"{MAX_PROMPT_TOKENS + 1} tokens.* is {MAX_PROMPT_TOKENS} tokens"
    ) as raised:
        read_completion({**asked, "prompt": [5] * (MAX_PROMPT_TOKENS + 1)}, service, "x")
    assert raised.value.param == "prompt"


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_a_body_that_no_prompt_needs(asker, service, chunked):
    """Read by the client although it was still sending; not tried again."""
    text = "x" * (8 * MIB)
    body = {"model": "babbler", "prompt": text}
    if chunked:
        parts = iter([b'{"model": "babbler", "prompt": "', *[b"x" * MIB] * 8, b'"}'])
        headers = {"Content-Type": "application/json"}
        answer = asker._client.post(f"{asker.base_url}completions", content=parts, headers=headers)
        status, code, message = answer.status_code, *map(answer.json()["error"].get, ("code", "message"))
    else:
        error = refusal(lambda: asker.completions.create(**body))
        status, code, message = error.status_code, error.code, error.message
    assert (status, code) == (413, "body_too_large")
    assert ("more than 557056 bytes" if chunked else "8388") in message
    assert "557.1 kB are read" in message
    assert service.generations.empty()


def test_the_limit_follows_the_context_and_stays_sane():
    assert Limits.of_context(4096).body_bytes == 786_432
    assert Limits.of_context(10**9).body_bytes == 4 * MIB
    # The longest prompt of token ids that the wire takes, written with commas and blanks.
    assert Limits.of_context(MAX_PROMPT_TOKENS).body_bytes > MAX_PROMPT_TOKENS * len("128255, ")
