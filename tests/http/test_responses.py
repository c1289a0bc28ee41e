"""Responses as OpenAI's client gets them."""

import httpx
import openai
import pytest

from tests.http.conftest import answers
from tpiedge.errors import PeerLost


def asked_of(service):
    request = service.generations.get(timeout=20).request
    return request, service.tokenizer.decode(request.prompt_ids, skip_special=False)


def test_a_response(client, service):
    text = answers(service, "Once upon a time")
    found = client.responses.create(
        model="babbler",
        input="hi",
        instructions="Be brief.",
        max_output_tokens=32,
        temperature=0.5,
        store=True,
    )
    assert found.output_text == text
    assert (found.status, found.object, found.store) == ("completed", "response", False)
    request, prompt = asked_of(service)
    assert prompt == "<system>Be brief.<user>hi"
    assert (request.max_tokens, request.sampling.temperature) == (32, 0.5)
    assert found.usage.input_tokens == len(request.prompt_ids)
    assert found.usage.output_tokens == len(service.tokenizer.encode(text, add_special=False))


def test_a_stream_has_their_events(client, service):
    text = answers(service, "Once upon a time")
    with client.responses.stream(model="babbler", input="hi") as stream:
        events = list(stream)
        found = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert found.output_text == text


@pytest.mark.parametrize(
    ("wanted", "top"),
    [
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, 2),
        ({"top_logprobs": 3}, 3),
    ],
)
def test_the_scores_of_an_answer(client, service, wanted, top):
    text = answers(service, "Once upon a time")
    ids = service.tokenizer.encode(text, add_special=False)
    tokens = [service.tokenizer.token_bytes(one).decode() for one in ids]
    whole = client.responses.create(model="babbler", input="hi", **wanted)
    with client.responses.stream(model="babbler", input="hi", **wanted) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    for found in (whole, streamed):
        ((part,),) = (item.content for item in found.output)
        assert [one.token for one in part.logprobs] == tokens
        assert [one.logprob for one in part.logprobs] == [-0.5] * len(ids)
        assert [len(one.top_logprobs) for one in part.logprobs] == [top] * len(ids)
        assert all(bytes(one.bytes).decode() == one.token for one in part.logprobs)
    deltas = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    (done,) = (event for event in events if event.type == "response.output_text.done")
    assert [one.token for one in deltas] == [one.token for one in done.logprobs] == tokens


def test_no_scores_are_told_that_nobody_wants(client, service):
    answers(service, "Once")
    raw = client.responses.with_raw_response.create(
        model="babbler", input="hi", include=["reasoning.encrypted_content"], top_logprobs=0
    )
    assert raw.headers["x-ignored-fields"] == "include"
    ((part,),) = (item.content for item in raw.parse().output)
    assert part.logprobs == []
    assert service.generations.get(timeout=20).request.sampling.logprobs == 0


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_is_incomplete(client, service, stream):
    def script(generation):
        generation.say(*service.tokenizer.encode("Once", add_special=False))
        generation.finish("length")

    service.script = script
    found = client.responses.create(model="babbler", input="hi", stream=stream)
    if stream:
        *_, last = found
        assert last.type == "response.incomplete"
        found = last.response
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_conversation_comes_whole(client, service):
    text = answers(service, "Once")
    first = client.responses.create(model="babbler", input="hi")
    asked_of(service)
    turns = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    turns += [item.model_dump() for item in first.output]
    client.responses.create(model="babbler", input=[*turns, {"role": "user", "content": "on"}])
    assert asked_of(service)[1] == f"<user>hi<assistant>{text}<user>on"


def test_a_failed_stream_ends_with_a_failed_response(client, service):
    def script(generation):
        generation.say(*service.tokenizer.encode("Once upon", add_special=False))
        generation.fail(PeerLost(1, "the work", "gone"))

    service.script = script
    events = []
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        events.extend(client.responses.create(model="babbler", input="hi", stream=True))
    assert events[-1].type == "response.failed"
    assert "gone" in events[-1].response.error.message
