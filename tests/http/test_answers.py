from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.http.conftest import answers, leave_early
from tpiedge.errors import ChildLost, PeerLost

LIMIT_S = 20.0
USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("text", ["Hello, you there", "smile \N{GRINNING FACE} and line\u2028end\r\n"])
@pytest.mark.fault("H11", "a stream gives the bytes of the whole answer")
def test_streamed_answer_equals_whole_answer(client, service, text):
    said, count = answers(service, text), len(service.tokenizer.encode(text, add_special=False))
    whole = client.chat.completions.create(model="babbler", messages=USER).choices[0].message.content
    more = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model="babbler", messages=USER, **more))
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole == said
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == count
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_completes_the_generation(client, service, stream):
    ids = service.tokenizer.encode("one two three four", add_special=False)
    service.script = lambda generation: generation.say(*ids)  # would go on
    answer = client.completions.create(model="babbler", prompt="x", stop=[" three"], stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == "one two"
    assert choices[-1].finish_reason == "stop"
    generation = service.generations.get(timeout=LIMIT_S)
    assert generation.completed.wait(LIMIT_S)
    assert not generation.cancelled.is_set(), "it is a success"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": USER}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": USER, "max_tokens": 9}),
        ("/api/chat", {"messages": USER}),
        ("/api/generate", {"prompt": "x"}),
    ],
)
@pytest.mark.fault("P22", "503 and Retry-After, in every API")
def test_lost_child_process_gives_503_with_retry_after(serve, service, path, fields, stream):
    service.script = lambda generation: generation.fail(ChildLost("it was killed twice: try again later"))
    body = {"model": "babbler", "stream": stream} | fields
    answer = httpx.post(f"{serve().url}{path}", json=body, timeout=20, trust_env=False)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    error = answer.json()["error"]
    assert "killed twice: try again later" in (error if isinstance(error, str) else error["message"])


@pytest.mark.fault("H9", "the client raises the error with its cause")
def test_failure_during_a_stream_raises_in_the_client(client, service):
    ids = service.tokenizer.encode("one two three", add_special=False)

    def script(generation):
        generation.say(*ids)
        generation.fail(PeerLost(1, "step 3", "killed by signal 9"))

    service.script = script
    got = []
    with pytest.raises(openai.APIError) as raised:
        got += client.chat.completions.create(model="babbler", messages=USER, stream=True)
    assert raised.value.code == "worker_lost"
    assert "killed by signal 9" in raised.value.message
    assert all(chunk.choices[0].finish_reason is None for chunk in got)


@pytest.mark.fault("H9", "the client raises; no part passes for the whole")
def test_failure_during_a_whole_answer_returns_an_error(client, service):
    def script(generation):
        generation.say(5, 6)
        generation.fail(PeerLost(1, "step 3", "killed by signal 9"))

    service.script = script
    with pytest.raises(openai.InternalServerError) as raised:
        client.completions.create(model="babbler", prompt="x")
    assert raised.value.code == "worker_lost"


@pytest.mark.fault("H6", "the work ends")
def test_client_leaving_a_stream_cancels_its_generation(client, service):
    service.script = lambda generation: generation.say(*range(10, 20))
    stream = client.completions.create(model="babbler", prompt="x", stream=True)
    next(iter(stream))
    generation = service.generations.get(timeout=LIMIT_S)
    assert not generation.cancelled.is_set()
    stream.close()
    assert generation.cancelled.wait(LIMIT_S)
    assert generation.ended.wait(LIMIT_S)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.fault("H6", "the work ends")
def test_client_leaving_before_first_token_cancels_its_generation(serve, service, stream):
    generation = leave_early(serve(), service, {"model": "babbler", "prompt": "x", "stream": stream})
    assert generation.cancelled.wait(LIMIT_S)


@pytest.mark.fault("H8", "each of a hundred is answered or told 429")
def test_a_hundred_at_once_get_an_answer_or_429(client, service):
    service.script = lambda generation: generation.say(7)

    def one(_number):
        try:
            return client.completions.create(model="babbler", prompt="x", stream=True)
        except openai.RateLimitError as error:
            return error

    with ThreadPoolExecutor(100) as threads:
        results = list(threads.map(one, range(100)))
    refused = [result for result in results if isinstance(result, openai.RateLimitError)]
    assert len(refused) == 96
    assert {error.response.headers["retry-after"] for error in refused} == {"2"}
    assert {error.code for error in refused} == {"queue_full"}
    for stream in set(results) - set(refused):
        stream.close()
    for _ in range(4):
        assert service.generations.get(timeout=LIMIT_S).ended.wait(LIMIT_S)


@pytest.mark.parametrize("large", [{"user": "x" * 200_000}, {"metadata": {"a": "x" * 200_000}}])
def test_oversized_request_field_is_not_echoed_but_others_are(client, service, large):
    answers(service, "Hello")
    said = client.responses.create(model="babbler", input="x", instructions="Be kind.", **large)
    assert said.instructions == "Be kind."
    assert not said.user
    assert not said.metadata
