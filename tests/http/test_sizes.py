import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import openai
import pytest

from tpiedge.api.limits import Limits
from tpiedge.units import MIB

CONTEXT = 512
LIMIT_S = 20.0


@pytest.fixture
def asker(serve):
    server = serve(limits=replace(Limits.of_context(CONTEXT), linger_s=LIMIT_S))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=20) as client:
        yield client


def refusal(ask):
    with pytest.raises(openai.APIStatusError) as raised:
        ask()
    return raised.value


@pytest.mark.fault("H3", "400 with the limit; it is not even tokenized to its end")
@pytest.mark.parametrize(
    ("text", "said"), [("once " * 2000, f"more than {CONTEXT} tokens"), ("x" * 40_000, "40000")]
)
def test_prompt_longer_than_the_context_is_refused(asker, text, said):
    """The first text is not counted to its end, the second not even tokenized."""
    messages = [{"role": "user", "content": text}]
    error = refusal(lambda: asker.chat.completions.create(model="babbler", messages=messages))
    assert (error.status_code, error.code) == (400, "context_length_exceeded")
    assert said in error.message
    assert str(CONTEXT) in error.message


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
def test_other_clients_are_answered_while_a_prompt_is_tokenized(serve, service, monkeypatch, path, body):
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
        pending = pool.submit(httpx.post, f"{url}{path}", json=body, timeout=LIMIT_S)
        try:
            assert begun.wait(LIMIT_S)
            assert httpx.get(f"{url}/health", timeout=LIMIT_S).status_code == 200
            assert not pending.done()
        finally:
            go_on.set()
        assert pending.result().status_code == 200


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_body_larger_than_any_prompt_is_refused(asker, service, chunked):
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
