"""Which form an answer must have, in the words of several servers."""

import importlib.util

import pytest

from tests.unit.api.test_requests import VOCABULARY, chat, completion, service
from tests.unit.api.test_tools import DEEP
from tpiedge.api.errors import ApiError
from tpiedge.testing.service import FakeService
from tpiedge.wire.limits import MAX_GRAMMAR
from tpiedge.wire.requests import Grammar

__all__ = ["service"]

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
CLOSED = '{"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}, "additionalProperties": false}'
ANY = Grammar("json", '{"type": "object"}')


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
        ("response_format.type", {"response_format": {"type": "xml"}}, "must be 'text', 'json_object' or"),
        ("response_format.type", {"response_format": {}}, "must be 'text', 'json_object' or"),
        ("response_format.json_schema", {"response_format": {"type": "json_schema"}}, "is missing"),
        (
            "response_format.json_schema.name",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "'response_format.json_schema.name' must have",
        ),
        ("response_format.json_schema.schema", {"response_format": described([1])}, "must be a JSON schema"),
        ("response_format.json_schema.schema", {"response_format": described(DEEP)}, "more than 64 deep"),
        ("grammar", {"grammar": " "}, "is empty"),
        ("grammar", {"grammar": "x" * (MAX_GRAMMAR + 1)}, f"at most {MAX_GRAMMAR}"),
        ("grammar", {"grammar": "\ud800"}, "no Unicode"),
        ("guided_json", {"guided_json": "{"}, "must be a JSON schema"),
        ("guided_choice", {"guided_choice": []}, "an array of 1 to"),
        ("guided_choice", {"guided_choice": ["a", 1]}, "not a string"),
        ("grammar", {"grammar": "x", "guided_regex": "a"}, "give one"),
        ("ignore_eos", {"grammar": "x", "ignore_eos": True}, "cannot be kept"),
    ],
)
@pytest.mark.parametrize("ask", [chat, completion])
def test_a_form_that_cannot_be_is_refused(service, ask, param, fields, why):
    with pytest.raises(ApiError, match=why) as raised:
        ask(service, **fields)
    assert raised.value.status == 400
    assert param in (raised.value.param, "grammar")


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
