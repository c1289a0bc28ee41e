"""Answers as OpenAI's client gets them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.http.conftest import KnowingTemplate, leave_early
from tpiedge.errors import ChildLost, GrammarRefused, PeerLost, UserError

LIMIT_S = 20.0
USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def says(service, text, reason="stop"):
    ids = service.tokenizer.encode(text, add_special=False)

    def script(generation):
        generation.say(*ids)
        generation.finish(reason)

    service.script = script
    return ids


def no_thread_left():
    return not [thread.name for thread in threading.enumerate() if thread.name.startswith("answer ")]


def test_models(client):
    assert [model.id for model in client.models.list()] == ["babbler"]
    assert client.models.retrieve("babbler").id == "babbler"
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("a/b")
    assert raised.value.code == "model_not_found"


def test_a_completion(client, service):
    ids = says(service, "Once upon a time", "length")
    answer = client.completions.create(model="babbler", prompt="x", extra_body={"return_token_ids": True})
    choice = answer.choices[0]
    assert choice.text == service.tokenizer.decode(ids)
    assert choice.finish_reason == "length"
    assert choice.token_ids == ids
    assert answer.object == "text_completion"
    assert answer.usage.completion_tokens == len(ids)
    assert answer.usage.total_tokens == len(ids) + answer.usage.prompt_tokens


@pytest.mark.parametrize("stream", [True, False])
def test_what_has_no_effect_is_told_once_in_the_log_and_in_every_answer(client, service, stream, caplog):
    for _ in range(2):
        says(service, "one two three")
        more = {"num_ctx": 4096, "safety_identifier": "x", "": 1}
        with client.chat.completions.with_streaming_response.create(
            model="babbler", messages=USER, stream=stream, user="me", extra_body=more
        ) as response:
            response.read()
            assert response.headers["x-ignored-fields"] == "user, safety_identifier, num_ctx, ?"
            assert response.headers["x-request-id"].startswith("chatcmpl-")
    told = [record.getMessage() for record in caplog.records if "has no effect here" in record.getMessage()]
    assert len(told) == len(set(told)) <= 4
    says(service, "one")
    plain = client.completions.with_raw_response.create(model="babbler", prompt="x")
    assert "x-ignored-fields" not in plain.headers
    assert plain.headers["x-request-id"] == plain.parse().id


def test_a_refusal_has_a_request_id_for_the_clients_own_log(client):
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(model="nobody", prompt="x")
    assert refused.value.request_id.startswith("req-")


def test_the_usage_says_what_was_kept_and_how_many_tokens_a_step_gave(client, service):
    def script(generation):
        generation.say(5, 6, 7, 8, 9)
        generation.finish("length", cached=2, steps=3)

    service.script = script
    usage = client.completions.create(model="babbler", prompt="one two three").usage
    assert usage.prompt_tokens_details.cached_tokens == 2
    assert usage.tokens_per_step == 1.67
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model="babbler", messages=USER, stream=True, stream_options=options
    )
    *_, last = stream
    assert last.usage.prompt_tokens_details.cached_tokens == 2
    assert last.usage.tokens_per_step == 1.67


def test_a_usage_without_the_last_word_of_rank_0_says_what_is_known(client, service):
    """A stop string does not wait for it; an answer without tokens has no speed."""
    says(service, "one two three")
    usage = client.completions.create(model="babbler", prompt="x", stop=" two").usage
    assert usage.completion_tokens > 0
    assert usage.prompt_tokens_details is None
    says(service, "")
    usage = client.completions.create(model="babbler", prompt="x").usage
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert not hasattr(usage, "tokens_per_step")


def test_a_chat(client, service):
    ids = says(service, "Hello, you")
    answer = client.chat.completions.create(model="babbler", messages=USER)
    assert answer.choices[0].message.content == service.tokenizer.decode(ids)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("text", ["Hello, you there", "smile \N{GRINNING FACE} and line\u2028end\r\n"])
@pytest.mark.fault("H11", "a stream gives the bytes of the whole answer")
def test_a_stream_says_the_same_as_a_whole_answer(client, service, text):
    ids = says(service, text)
    whole = client.chat.completions.create(model="babbler", messages=USER).choices[0].message.content
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model="babbler", messages=USER, stream=True, stream_options=options)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole == service.tokenizer.decode(ids)
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(ids)
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_streamed_completion(client, service):
    ids = says(service, "one two three")
    chunks = list(client.completions.create(model="babbler", prompt="x", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == service.tokenizer.decode(ids)
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_work(client, service, stream):
    ids = service.tokenizer.encode("one two three four", add_special=False)
    service.script = lambda generation: generation.say(*ids)  # would go on
    answer = client.completions.create(model="babbler", prompt="x", stop=[" three"], stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == "one two"
    assert choices[-1].finish_reason == "stop"
    generation = service.generations.get(timeout=LIMIT_S)
    assert generation.completed.wait(LIMIT_S)
    assert not generation.cancelled.is_set(), "it is a success"


def test_log_probabilities(client, service):
    ids = says(service, "one two")
    answer = client.chat.completions.create(model="babbler", messages=USER, logprobs=True, top_logprobs=2)
    scores = answer.choices[0].logprobs.content
    assert [len(score.top_logprobs) for score in scores] == [2] * len(ids)
    assert all(score.logprob == -0.5 for score in scores)
    assert "".join(score.token for score in scores) == service.tokenizer.decode(ids)
    answer = client.completions.create(model="babbler", prompt="x", logprobs=1)
    scores = answer.choices[0].logprobs
    assert scores.text_offset[0] == 0
    assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.top_logprobs) == len(ids)


def test_refusals_name_the_field(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="babbler", messages=USER, temperature=3)
    assert raised.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt", messages=USER)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (PeerLost(2, "allreduce of step 4", "killed by signal 9"), 503, "worker_lost"),
        (UserError("the prompt does not fit"), 400, "invalid_value"),
        (ValueError("secret detail"), 500, "internal_error"),
    ],
)
def test_a_failure_before_the_first_token_has_its_status(client, service, stream, error, status, code):
    service.script = lambda generation: generation.fail(error)
    with pytest.raises(openai.APIStatusError) as raised:
        client.chat.completions.create(model="babbler", messages=USER, stream=stream)
    assert raised.value.status_code == status
    assert raised.value.code == code
    assert "secret" not in str(raised.value)


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
def test_a_process_that_was_killed_twice_asks_for_another_try(serve, service, path, fields, stream):
    service.script = lambda generation: generation.fail(ChildLost("it was killed twice: try again later"))
    body = {"model": "babbler", "stream": stream} | fields
    answer = httpx.post(f"{serve().url}{path}", json=body, timeout=20, trust_env=False)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    error = answer.json()["error"]
    assert "killed twice: try again later" in (error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("completions", {"prompt": "x", "grammar": 'start: "a"'}, "grammar"),
        ("completions", {"prompt": "x", "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        (
            "chat/completions",
            {"messages": USER, "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ("chat/completions", {"messages": USER, "tools": TOOLS, "tool_choice": "required"}, "tools"),
        ("responses", {"input": "x", "text": {"format": {"type": "json_object"}}}, "text.format"),
    ],
)
def test_a_grammar_that_the_cluster_refuses_is_named_by_its_field(
    serve, service, path, fields, param, stream
):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    service.template = KnowingTemplate()
    service.script = lambda generation: generation.fail(GrammarRefused("the grammar is refused: too large"))
    body = {"model": "babbler", "stream": stream} | fields
    answer = httpx.post(f"{serve().url}/v1/{path}", json=body, timeout=20, trust_env=False)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["message"]) == (param, "the grammar is refused: too large")


@pytest.mark.fault("H9", "the client raises the error with its cause")
def test_a_failure_in_the_middle_of_a_stream_raises_in_the_client(client, service):
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
def test_a_failure_in_the_middle_of_a_whole_answer_is_no_answer(client, service):
    def script(generation):
        generation.say(5, 6)
        generation.fail(PeerLost(1, "step 3", "killed by signal 9"))

    service.script = script
    with pytest.raises(openai.InternalServerError) as raised:
        client.completions.create(model="babbler", prompt="x")
    assert raised.value.code == "worker_lost"


def test_unavailable(client, service):
    service.unavailable = "2 of 3 nodes load their weights"
    with pytest.raises(openai.InternalServerError, match="load their weights") as raised:
        client.completions.create(model="babbler", prompt="x")
    assert raised.value.status_code == 503


@pytest.mark.fault("H6", "the work ends")
def test_a_client_that_leaves_a_stream_ends_the_work(client, service):
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
def test_a_client_that_leaves_before_the_first_token_ends_the_work(serve, service, stream):
    generation = leave_early(serve(), service, {"model": "babbler", "prompt": "x", "stream": stream})
    assert generation.cancelled.wait(LIMIT_S)


@pytest.mark.fault("H8", "each of a hundred is answered or told 429")
def test_a_hundred_at_once_get_an_answer_or_429(client, service):
    service.script = lambda generation: generation.say(7)
    bodies = []

    def one(_number):
        try:
            stream = client.completions.create(model="babbler", prompt="x", stream=True)
        except openai.RateLimitError as error:
            return error
        bodies.append(stream)
        return stream

    with ThreadPoolExecutor(100) as threads:
        results = list(threads.map(one, range(100)))
    refused = [result for result in results if isinstance(result, openai.RateLimitError)]
    assert len(refused) == 96
    assert {error.response.headers["retry-after"] for error in refused} == {"2"}
    assert {error.code for error in refused} == {"queue_full"}
    for stream in bodies:
        stream.close()
    for _ in range(4):
        assert service.generations.get(timeout=LIMIT_S).ended.wait(LIMIT_S)


def test_a_template_in_its_child_process(client, service):
    from tests.http.conftest import DEMO
    from tpiedge.model.template import ChatTemplate

    service.template = ChatTemplate.open(DEMO, service.tokenizer.special_tokens)
    ids = says(service, "yes")
    answer = client.chat.completions.create(model="babbler", messages=USER)
    assert answer.choices[0].message.content == service.tokenizer.decode(ids)
