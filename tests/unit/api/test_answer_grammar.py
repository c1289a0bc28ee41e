"""Which form an answer must have, in the words of several servers."""

import importlib.util

import pytest

from tests.unit.api.test_requests import VOCABULARY, chat, completion, service, vain
from tests.unit.api.test_tools import DEEP, USER
from tpiedge.api.anthropic_request import read_messages_request
from tpiedge.api.errors import ApiError, error_body
from tpiedge.api.ollama_request import read_generate, read_ollama_chat
from tpiedge.api.responses_request import read_response
from tpiedge.testing.service import FakeService
from tpiedge.wire.limits import MAX_GRAMMAR
from tpiedge.wire.requests import Grammar

__all__ = ["service"]

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
CLOSED = JSON.replace('"properties"', '"required": ["a"], "properties"').replace(
    '"required": ["a"]}', '"additionalProperties": false}'
)
ANY = Grammar("json", '{"type": "object"}')
UNIQUE = {"type": "object", "properties": {"f": {"type": "array", "uniqueItems": True}}}


@pytest.fixture(autouse=True)
def _needs_llguidance() -> None:
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")


def described(schema=SCHEMA, **more):
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True} | more}


@pytest.mark.parametrize("ask", [chat, completion])
@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "grammar": None}, None),
        ({"response_format": {"type": "json_object"}}, ANY),
        ({"response_format": described()}, Grammar("json", CLOSED)),
        ({"response_format": described(description="x", strict=False)}, Grammar("json", CLOSED)),
        ({"response_format": described(None)}, ANY),
        ({"grammar": 'start: "a"'}, Grammar("lark", 'start: "a"')),
        ({"guided_json": SCHEMA}, Grammar("json", CLOSED)),
        ({"guided_json": JSON}, Grammar("json", CLOSED)),
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"guided_choice": ["a", 'b"']}, Grammar("lark", 'start: "a" | "b\\""')),
        ({"guided_grammar": 'root ::= "a"'}, Grammar("lark", 'root ::= "a"')),
        ({"structured_outputs": {"regex": "a|b"}}, Grammar("regex", "a|b")),
        ({"structured_outputs": {"json_object": True}}, ANY),
        ({"nvext": {"guided_regex": "a|b"}}, Grammar("regex", "a|b")),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, Grammar("json", CLOSED)),
        ({"response_format": {"type": "json_object", "schema": JSON}}, Grammar("json", CLOSED)),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, Grammar("json", CLOSED)),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, Grammar("json", CLOSED)),
        ({"response_format": {"type": "json", "value": SCHEMA}}, Grammar("json", CLOSED)),
        ({"response_format": {"type": "json_schema", "value": {"schema": SCHEMA}}}, Grammar("json", CLOSED)),
        ({"response_format": {"type": "regex", "value": "a+"}}, Grammar("regex", "a+")),
        ({"response_format": {"type": "regex", "pattern": "a+"}}, Grammar("regex", "a+")),
        (
            {"response_format": {"type": "grammar", "grammar": 'root ::= "a"'}},
            Grammar("lark", 'root ::= "a"'),
        ),
        ({"grammar": {"type": "regex", "value": "a+"}}, Grammar("regex", "a+")),
        ({"json_schema": SCHEMA}, Grammar("json", CLOSED)),
        ({"json_schema": JSON}, Grammar("json", CLOSED)),
        ({"regex": "[0-9]{3}"}, Grammar("regex", "[0-9]{3}")),
        ({"ebnf": 'root ::= "a"'}, Grammar("lark", 'root ::= "a"')),
        ({"regex": "a", "guided_regex": "a", "structured_outputs": {"regex": "a"}}, Grammar("regex", "a")),
        ({"json_schema": SCHEMA, "response_format": described()}, Grammar("json", CLOSED)),
        ({"guided_json": SCHEMA, "json_schema": dict(reversed(SCHEMA.items()))}, Grammar("json", CLOSED)),
    ],
)
def test_what_the_answer_must_be(service, ask, fields, grammar):
    assert ask(service, **fields)[0].grammar == grammar


@pytest.mark.parametrize(
    ("param", "fields", "why"),
    [
        ("guided_json", {"guided_json": "[" * 60_000}, "is nested too deeply"),
        ("guided_json", {"guided_json": "[0" + ",0" * 100_000 + "]"}, "has more than 65536 values"),
        (
            "structured_outputs.json",
            {"structured_outputs": {"json": '{"a":' * 200 + "0" + "}" * 200}},
            "is nested too deeply",
        ),
        ("response_format", {"response_format": "json"}, "must be an object"),
        (
            "response_format.type",
            {"response_format": {"type": "xml"}},
            "must be 'text', 'json_object', 'json_sc",
        ),
        ("response_format.type", {"response_format": {}}, "is missing"),
        ("response_format.json_schema", {"response_format": {"type": "json_schema"}}, "is missing"),
        (
            "response_format.json_schema.name",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "'response_format.json_schema.name' is missing",
        ),
        ("response_format.json_schema.schema", {"response_format": described([1])}, "must be an object"),
        ("response_format.json_schema.schema", {"response_format": described(DEEP)}, "more than 64 deep"),
        ("grammar", {"grammar": " "}, "is empty"),
        ("grammar", {"grammar": "x" * (MAX_GRAMMAR + 1)}, f"at most {MAX_GRAMMAR}"),
        ("grammar", {"grammar": "\ud800"}, "no Unicode"),
        ("guided_json", {"guided_json": "{"}, "must be a JSON schema"),
        ("guided_choice", {"guided_choice": []}, "an array of 1 to"),
        ("guided_choice", {"guided_choice": ["a", 1]}, "not a string"),
        ("grammar", {"grammar": "x", "guided_regex": "a"}, "give one"),
        ("regex", {"regex": "b", "guided_regex": "a"}, "and not the same: give one"),
        ("regex", {"regex": "b", "response_format": {"type": "json_object"}}, "and not the same: give one"),
        (
            "response_format.value",
            {"response_format": {"type": "json", "value": SCHEMA, "schema": {"type": "object"}}},
            "and not the same: give one",
        ),
        ("response_format.value", {"response_format": {"type": "regex"}}, "is missing"),
        ("regex", {"regex": 5}, "must be a string"),
        ("json_schema", {"json_schema": [1]}, "must be an object"),
        ("structural_tag", {"structural_tag": {"structures": []}}, "is not supported"),
        (
            "response_format.json_schema.schema",
            {"response_format": described(UNIQUE, strict=True)},
            "'response_format.json_schema.schema.properties.f.uniqueItems' cannot be kept to, as 'strict' wants",
        ),
        ("ignore_eos", {"grammar": "x", "ignore_eos": True}, "cannot be kept"),
    ],
)
@pytest.mark.parametrize("ask", [chat, completion])
def test_a_form_that_cannot_be_is_refused(service, ask, param, fields, why):
    with pytest.raises(ApiError, match=why) as raised:
        ask(service, **fields)
    assert raised.value.status == 400
    assert param in (raised.value.param, "grammar")


@pytest.mark.parametrize("strict", [False, None])
def test_what_a_grammar_cannot_hold_is_told_as_ignored(service, strict):
    named = vain(service, response_format=described(UNIQUE, strict=strict))
    assert named == ("response_format.json_schema.schema.properties.f.uniqueItems",)
    deep = {"type": "object", "properties": {"of_a_long_name": {"$ref": "#/$defs/a_long_name_as_well"}}}
    deep["$defs"] = {"a_long_name_as_well": {"type": "array", "items": {"not": {"type": "string"}}}}
    (named,) = vain(service, response_format=described(deep, strict=strict))
    assert named == "response_format.json_schema.schema...items.not"
    assert vain(service, guided_json=UNIQUE) == ("guided_json.properties.f.uniqueItems",)


OTHERS = {
    "message": (read_messages_request, {"messages": [USER], "max_tokens": 5}),
    "response": (read_response, {"input": "hi"}),
    "ollama-chat": (read_ollama_chat, {"messages": [USER]}),
    "ollama-generate": (read_generate, {"prompt": "hi"}),
    "ollama-generate, raw": (read_generate, {"prompt": "hi", "raw": True}),
}


def asked_of(service, api, **fields):
    read, least = OTHERS[api]
    return read({"model": "babbler"} | least | fields, service, "x-1")


@pytest.mark.parametrize("api", OTHERS)
@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"guided_json": SCHEMA}, Grammar("json", CLOSED)),
        ({"regex": "a+"}, Grammar("regex", "a+")),
        ({"response_format": described()}, Grammar("json", CLOSED)),
        ({"structured_outputs": {"choice": ["a"]}}, Grammar("lark", 'start: "a"')),
    ],
)
def test_other_apis_read_the_same_names(service, api, fields, grammar):
    assert asked_of(service, api, **fields).choices[0].request.grammar == grammar


FORM = {"type": "json_schema", "schema": SCHEMA}
OWN = [
    ("message", {"output_format": FORM}, "output_format"),
    ("message", {"output_config": {"format": FORM}}, "output_config.format"),
    ("message", {"output_config": {"format": FORM}, "output_format": dict(FORM)}, "output_config.format"),
    ("response", {"text": {"format": FORM | {"name": "x"}}}, "text.format"),
    ("response", {"text": {"format": {"type": "json_object", "schema": SCHEMA}}}, "text.format"),
    ("ollama-chat", {"format": SCHEMA}, "format"),
    ("ollama-generate", {"format": SCHEMA}, "format"),
    ("ollama-generate, raw", {"format": SCHEMA}, "format"),
]


@pytest.mark.parametrize(("api", "fields", "_param"), OWN)
def test_other_apis_have_their_own_names(service, api, fields, _param):
    assert asked_of(service, api, **fields).choices[0].request.grammar == Grammar("json", CLOSED)


@pytest.mark.parametrize(
    ("api", "fields", "param"),
    [
        (
            "message",
            {"output_config": {"format": FORM}, "output_format": FORM | {"schema": {}}},
            "output_format",
        ),
        ("message", {"output_format": {"type": "text"}}, "output_format.type"),
        ("response", {"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex"),
        ("ollama-chat", {"format": SCHEMA, "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_two_names_that_differ_are_refused_everywhere(service, api, fields, param):
    with pytest.raises(ApiError) as raised:
        asked_of(service, api, **fields)
    assert (raised.value.status, raised.value.param) == (400, param)


@pytest.mark.parametrize(
    ("api", "fields", "named"),
    [
        (
            "message",
            {"output_format": FORM | {"schema": UNIQUE}},
            "output_config.format.schema.properties.f.uniqueItems",
        ),
        (
            "response",
            {"text": {"format": FORM | {"name": "x", "schema": UNIQUE}}},
            "text.format.schema.properties.f.uniqueItems",
        ),
        ("ollama-chat", {"format": UNIQUE}, "format.properties.f.uniqueItems"),
    ],
)
def test_what_is_left_out_is_told_in_the_words_of_the_request(service, api, fields, named):
    assert asked_of(service, api, **fields).ignored == (named,)


def test_a_thread_of_messages_is_refused_as_its_clients_expect(service):
    for body in (
        {"thread": {"type": "create"}},
        {"thread": {"type": "continue", "previous_message_id": "x"}},
    ):
        with pytest.raises(ApiError) as raised:
            asked_of(service, "message", **body)
        error = error_body(raised.value, "/v1/messages")
        assert error["error"]["type"] == "invalid_request_error"
        assert error["error"]["details"] == {
            "error_code": "thread_unsupported_request",
            "unsupported": ["thread"],
        }
    assert asked_of(service, "message", thread=None)


def test_without_the_library_a_line_says_what_to_install(service, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("tpiedge.engine.sampling.find_spec", lambda name: None)
    with pytest.raises(ApiError, match=r"pip install 'tpiedge\[grammar\]'") as raised:
        chat(service, response_format=described())
    assert raised.value.status == 400
    assert chat(service, response_format={"type": "text"})[0].grammar is None


def test_a_model_without_a_tokenizer_has_no_grammars():
    mute = FakeService(None, vocab_size=VOCABULARY)
    with pytest.raises(ApiError, match="has no tokenizer"):
        completion(mute, prompt=[1], grammar="x")
