import json

import jsonschema
import pytest

from tests.fakes.service import FakeService
from tests.http.conftest import InstantTemplate
from tests.unit.api.test_requests import VOCABULARY, chat, ignored_fields, service
from tpiedge.api.errors import ApiError
from tpiedge.api.fields import MAX_TEXT_VALUES, BodyFields, body
from tpiedge.model.tokenizer import Tokenizer

__all__ = ["service"]

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LINKED = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/kind"}, "b": {"$ref": "#/properties/a"}},
    "$defs": {"kind": {"enum": ["x", "y"]}},
}
TEMPLATES = {
    "hermes": "{{ tools }}<tool_call></tool_call>",
    "llama3": '{{ tools }}{"name": function name, "parameters": ...}',
    "mistral": "{{ tools }}[TOOL_CALLS]",
}
USER = {"role": "user", "content": "hi"}


def tool(name="weather", parameters=CITY, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


@pytest.fixture(params=TEMPLATES)
def knowing(service, request):
    template = InstantTemplate(TEMPLATES[request.param])
    made = FakeService(service.tokenizer, template, vocab_size=VOCABULARY)
    made.form = request.param
    return made


def allows(request, form, name, arguments):
    """Returns whether the grammar of a required call allows this call."""
    text = request.grammar.text
    call = {"name": name, "parameters" if form == "llama3" else "arguments": arguments}
    schema = json.loads(text[text.index("%json ") + 6 :])
    return jsonschema.Draft202012Validator(schema).is_valid([call] if form == "mistral" else call)


@pytest.mark.parametrize(
    ("choice", "name"),
    [("required", "weather"), ({"type": "function", "function": {"name": "link"}}, "link")],
)
@pytest.mark.parametrize("several", [True, False])
def test_required_tool_call_becomes_a_grammar(knowing, choice, name, several):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    tools = [tool(), tool("link", LINKED)]
    request, reply = chat(knowing, tools=tools, tool_choice=choice, parallel_tool_calls=several)
    assert reply.speech.several == several
    assert request.grammar.kind == "lark"
    assert knowing.form != "hermes" or ('"\\n" call)*' in request.grammar.text) == several
    assert allows(request, knowing.form, "weather", {"city": "x"}) == (name == "weather")
    assert name == "weather" or allows(request, knowing.form, "link", {"a": "x", "b": "y"})
    for bad in ((name, {"city": 1, "a": "z"}), ("other", {}), ("link", {"b": "z"})):
        assert not allows(request, knowing.form, *bad)


@pytest.mark.fault(
    "H3", "the arguments of a required call are an object, whatever else the schema of a tool allows"
)
@pytest.mark.parametrize(
    "parameters", [{"type": ["object", "null"]}, {"anyOf": [{"type": "string"}, {"type": "object"}]}]
)
def test_required_call_arguments_must_be_an_object(knowing, parameters):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    request, _ = chat(knowing, tools=[tool("f", parameters)], tool_choice="required")
    assert allows(request, knowing.form, "f", {})
    assert not allows(request, knowing.form, "f", None)
    assert not allows(request, knowing.form, "f", "x")


def test_tools_too_large_for_a_grammar_are_reported_as_ignored(service, monkeypatch):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    monkeypatch.setattr(Tokenizer, "token_id", lambda self, mark: 5 if mark == "<tool_call>" else None)
    made = FakeService(
        service.tokenizer, InstantTemplate(TEMPLATES["hermes"]), vocab_size=VOCABULARY, max_sequence=4096
    )
    wide = {"type": "object", "properties": {f"{number:0>30}": {"type": "string"} for number in range(600)}}
    assert chat(made, tools=[tool("f", wide)])[0].grammar.begins == 5
    assert ignored_fields(made, tools=[tool("f", wide)]) == ()
    many = [tool(name, wide) for name in ("f", "g", "h")]
    assert chat(made, tools=many)[0].grammar is None
    assert ignored_fields(made, tools=many) == ("tools.function.parameters",)


def called_with(*arguments):
    calls = [{"id": "c", "function": {"name": "f", "arguments": text}} for text in arguments]
    return [USER, {"role": "assistant", "tool_calls": calls}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": ' + "[" * 200_000 + "]" * 200_000 + "}", f"has more than {MAX_TEXT_VALUES} values"),
        ('{"a": [' + "[]," * MAX_TEXT_VALUES + "[]]}", f"has more than {MAX_TEXT_VALUES} values"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "is nested too deeply"),
        ("[" * 60_000, "is nested too deeply"),
    ],
    ids=["deep and many", "many", "deep", "deep and unfinished"],
)
@pytest.mark.fault("H2", "JSON within a text has the limits of a body")
def test_tool_call_arguments_are_limited_like_bodies(knowing, text, why):
    with pytest.raises(ApiError, match=why) as raised:
        chat(knowing, messages=called_with("{}", text))
    assert raised.value.param == "messages[1].tool_calls[1].function.arguments"
    assert len(raised.value.message) < 200


def test_json_texts_of_a_request_share_one_value_limit():
    value = {"a": [0] * 1_000}
    form = body(inner=body(text={}), broken={}, object={})
    fields = BodyFields({"inner": {"text": json.dumps(value)}, "broken": "{oh", "object": {}}, form)
    inner = fields.nested("inner")
    for _ in range(65):
        assert inner.parsed("text") == value
    assert fields.parsed("broken") == "{oh"
    assert fields.parsed("object") == {}
    with pytest.raises(ApiError, match=f"'inner.text' has more than {MAX_TEXT_VALUES} values"):
        inner.parsed("text")


@pytest.mark.parametrize(
    ("template", "thinking"), [("plain", ""), ("<think></think>", "marked"), ("opens <think>", "begun")]
)
def test_reasoning_mode_follows_the_chat_template(service, template, thinking):
    made = FakeService(service.tokenizer, InstantTemplate(template), vocab_size=VOCABULARY)
    assert chat(made)[1].speech.thinking == thinking


def test_structured_answer_has_no_reasoning(service):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    made = FakeService(service.tokenizer, InstantTemplate("opens <think>"), vocab_size=VOCABULARY)
    free, formed = chat(made), chat(made, response_format={"type": "json_object"})
    assert formed[1].speech.thinking == ""
    begun, closed = (
        service.tokenizer.decode(one.prompt_ids, skip_special=False) for one, _ in (free, formed)
    )
    assert closed.startswith(begun)
    assert closed.removeprefix(begun) == "</think>\n\n"
