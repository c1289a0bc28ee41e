"""Texts to token ids and back, in the forms of other servers."""

import json

import httpx
import pytest

import tpiedge
from tpiedge.api.limits import Limits
from tpiedge.api.openapi import document

JSON = {"content-type": "application/json"}
TEXT = "Once upon a time there was a fox"


@pytest.fixture
def server(serve):
    return serve(limits=Limits(linger_s=60))


@pytest.fixture
def post(server):
    def post(path, **fields):
        return httpx.post(f"{server.url}{path}", content=json.dumps(fields), headers=JSON, trust_env=False)

    return post


def test_a_text_and_back(post, service):
    ids = service.tokenizer.encode(TEXT)
    found = post("/tokenize", model="babbler", prompt=TEXT).json()
    assert found == {"tokens": ids, "count": len(ids), "max_model_len": service.max_sequence}
    plain = service.tokenizer.encode(TEXT, add_special=False)
    assert post("/tokenize", prompt=TEXT, add_special_tokens=False).json()["tokens"] == plain
    assert post("/tokenize", content=TEXT).json()["tokens"] == plain
    assert post("/tokenize", content=TEXT, add_special=True).json()["tokens"] == ids
    assert post("/detokenize", tokens=plain).json() == {"prompt": TEXT, "content": TEXT}


@pytest.mark.parametrize("param", ["prompt", "content"])
def test_special_tokens_may_be_text(post, service, param):
    text, plain = "<|user|>hi<|end|>", {"add_special": False, "add_special_tokens": False}
    tokens, letters = (
        post("/tokenize", **{param: text, **plain, "parse_special": flag}).json()["tokens"]
        for flag in (True, False)
    )
    assert tokens == post("/tokenize", **{param: text, **plain}).json()["tokens"]
    assert tokens == service.tokenizer.encode(text, add_special=False)
    assert not service.tokenizer.special_ids & set(letters)
    assert post("/detokenize", tokens=letters).json()["content"] == text


def test_the_texts_of_single_tokens(post):
    for wanted in ({"prompt": TEXT, "return_token_strs": True}, {"content": TEXT, "with_pieces": True}):
        found = post("/tokenize", **wanted).json()
        assert len(found["token_strs"]) == found["count"]


def test_a_chat_has_the_tokens_of_its_prompt(post, service):
    messages = [{"role": "user", "content": "hi"}]
    found = post("/tokenize", messages=messages).json()
    text = service.template.render(messages)
    assert found["tokens"] == service.tokenizer.encode(text, add_special=False)


def test_the_version(server):
    assert httpx.get(f"{server.url}/version", trust_env=False).json() == {"version": tpiedge.__version__}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {"prompt": "a" * 10_000_000}, "prompt"),
        ("/detokenize", {"tokens": [1] * 100_000}, "tokens"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.fault("H3", "400 that names the parameter")
def test_what_cannot_be_is_refused(post, path, fields, param):
    said = post(path, **fields)
    assert said.status_code in (400, 404, 413)
    assert said.status_code == 413 or said.json()["error"]["param"] == param


def test_a_key_is_needed_where_there_are_keys(server, serve):
    described = httpx.get(f"{server.url}/openapi.json", trust_env=False)
    assert described.json() == json.loads(json.dumps(document()))
    locked = serve(keys=["secret"])
    for path in ("version", "openapi.json"):
        assert httpx.get(f"{locked.url}/{path}", trust_env=False).status_code == 401
