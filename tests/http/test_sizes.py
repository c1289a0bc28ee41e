"""Prompts and bodies that are too large: refused with the numbers, through the real server and OpenAI's client."""

import openai
import pytest

from tpiedge.api.limits import Limits
from tpiedge.units import MIB
from tpiedge.wire.limits import MAX_PROMPT_TOKENS

CONTEXT = 512


@pytest.fixture
def asker(serve):
    """OpenAI's client; it would try again where that could help."""
    server = serve(limits=Limits.of_context(CONTEXT))
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


def test_prompt_and_answer_together(asker, service):
    """The answer gets what the prompt leaves."""
    service.script = lambda generation: generation.finish("length")
    answer = asker.completions.create(model="babbler", prompt=[5] * 500, max_tokens=13)
    assert answer.choices[0].finish_reason == "length"
    assert service.generations.get(timeout=5).request.max_tokens == CONTEXT - 500


def test_more_tokens_than_the_wire_takes(serve, service):
    """Where the context is larger than what one message to rank 0 may carry."""
    service.max_sequence = MAX_PROMPT_TOKENS + 1000
    with openai.OpenAI(base_url=f"{serve().url}/v1", api_key="none", timeout=20) as client:
        ask = client.completions.create
        error = refusal(lambda: ask(model="babbler", prompt=[5] * (MAX_PROMPT_TOKENS + 1)))
        assert_too_long(error, MAX_PROMPT_TOKENS + 1, MAX_PROMPT_TOKENS)
        assert error.param == "prompt"
        service.script = lambda generation: generation.finish()
        answer = ask(model="babbler", prompt=[5] * MAX_PROMPT_TOKENS)
    assert answer.usage.prompt_tokens == MAX_PROMPT_TOKENS


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
