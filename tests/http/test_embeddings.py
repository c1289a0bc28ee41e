"""Embeddings as OpenAI's client gets them."""

import base64
import json

import httpx
import openai
import pytest

from tpiedge.api.limits import Limits
from tpiedge.errors import PeerLost
from tpiedge.testing.service import WIDTH

JSON = {"content-type": "application/json"}
VECTOR = (0.0, 3.0, -4.0, 0.0)
UNIT = [0.0, 0.6, -0.8, 0.0]


@pytest.fixture
def embeds(service):
    """The cluster gives each prompt a vector as long as the prompt, and is asked in `asked`."""
    asked = []

    def script(generation):
        asked.append(generation.request)
        generation.embed(*(value * len(generation.request.prompt_ids) for value in VECTOR))
        generation.finish("stop")

    service.script = script
    return asked


@pytest.mark.parametrize("encoding", ["float", "base64", openai.omit])
def test_a_text_is_a_unit_vector(client, embeds, service, encoding):
    answer = client.embeddings.create(model="babbler", input="a fox", encoding_format=encoding)
    (one,) = answer.data
    if encoding == "base64":
        one.embedding = list(memoryview(base64.b64decode(one.embedding)).cast("f"))
    assert one.embedding == pytest.approx(UNIT)
    assert (answer.object, one.object, one.index) == ("list", "embedding", 0)
    (request,) = embeds
    assert list(request.prompt_ids) == service.tokenizer.encode("a fox")
    assert (request.pooling, request.max_tokens) == ("mean", 0)
    tokens = len(request.prompt_ids)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)


@pytest.mark.parametrize("given", [["a", "b", "c"], [[5, 6], [7]], [[9]], [5, 6, 7]])
def test_texts_and_token_ids_are_embedded_one_by_one(client, embeds, given):
    answer = client.embeddings.create(model="babbler", input=given, extra_body={"pooling": "last"})
    many = given if isinstance(given[0], str | list) else [given]
    assert [one.index for one in answer.data] == list(range(len(many)))
    assert [request.pooling for request in embeds] == ["last"] * len(many)
    if isinstance(many[0], list):
        assert [list(request.prompt_ids) for request in embeds] == many


@pytest.mark.parametrize(("wanted", "pooled"), [(openai.omit, "last"), ("last", "last"), ("mean", "mean")])
def test_the_model_says_how_they_are_pooled_unless_the_request_does(client, embeds, service, wanted, pooled):
    service.pooling = "last"
    extra = {} if wanted is openai.omit else {"pooling": wanted}
    client.embeddings.create(model="babbler", input="a", extra_body=extra)
    assert [request.pooling for request in embeds] == [pooled]


def test_a_pooling_that_is_not_supported_is_named(client, embeds, service):
    service.pooling = "cls"
    with pytest.raises(openai.BadRequestError, match="pooled by cls, which is not supported: give 'pooling'"):
        client.embeddings.create(model="babbler", input="a")
    client.embeddings.create(model="babbler", input="a", extra_body={"pooling": "mean"})
    assert [request.pooling for request in embeds] == ["mean"]


def test_more_texts_than_are_embedded_at_once_come_in_their_order(client, service):
    """Of those that run, the later ones end first."""
    waiting = []

    def script(generation):
        waiting.append(generation)
        if len(waiting) == 4 or "-39" in generation.request.id:
            for one in reversed(waiting):
                one.embed(float(one.request.id.rpartition("-")[2]), 1.0)
                one.finish("stop")
            waiting.clear()

    service.script = script
    answer = client.embeddings.create(model="babbler", input=[f"text {n}" for n in range(40)])
    ratios = [one.embedding[0] / one.embedding[1] for one in answer.data]
    assert ratios == pytest.approx(list(range(40)), rel=1e-5)
    assert [one.index for one in answer.data] == list(range(40))


def test_a_client_that_waits_hears_something_that_is_no_part_of_the_answer(serve, service):
    limits = Limits(ping_s=0.05)
    server = serve(limits=limits)
    with httpx.stream(
        "POST", f"{server.url}/v1/embeddings", json={"model": "babbler", "input": "a"}, trust_env=False
    ) as answer:
        parts = answer.iter_raw()
        begun = next(parts)
        assert begun.strip() in (b"", b'{"object": "list", "data": [')
        generation = service.generations.get(timeout=20)
        generation.embed(*VECTOR)
        generation.finish("stop")
        whole = json.loads(begun + b"".join(parts))
    assert answer.headers["content-type"] == "application/json"
    assert whole["data"][0]["embedding"] == pytest.approx(UNIT)


def test_one_that_fails_later_breaks_off(serve, service):
    server = serve()
    asked = {"model": "babbler", "input": ["a", "b"]}
    with httpx.stream("POST", f"{server.url}/v1/embeddings", json=asked, trust_env=False) as answer:
        first, second = (service.generations.get(timeout=20) for _ in range(2))
        first.embed(*VECTOR)
        first.finish("stop")
        parts = answer.iter_raw()
        said = b""
        while b"index" not in said:
            said += next(parts)
        second.fail(PeerLost(1, "the work", "gone"))
        rest = []
        with pytest.raises(httpx.RemoteProtocolError):
            rest.extend(parts)
    with pytest.raises(ValueError):
        json.loads(said + b"".join(rest))


def test_one_that_fails_at_once_has_its_status(client, service):
    service.script = lambda generation: generation.fail(PeerLost(1, "the work", "gone"))
    with pytest.raises(openai.InternalServerError) as raised:
        client.embeddings.create(model="babbler", input="a")
    assert raised.value.code == "worker_lost"


def test_all_dimensions_may_be_asked_for(client, embeds):
    answer = client.embeddings.create(model="babbler", input="a", dimensions=WIDTH, user="somebody")
    assert len(answer.data[0].embedding) == WIDTH
