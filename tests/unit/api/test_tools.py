"""Tools that a model may call: what a client may say of them, what the template is told, and what an answer must be."""

import functools
import json

import jsonschema
import pytest

from tests.unit.api.test_requests import VOCABULARY, InstantTemplate, chat, service
from tpiedge.api.errors import ApiError
from tpiedge.api.fields import MAX_TEXT_VALUES, BodyFields
from tpiedge.model.template import ChatTemplate
from tpiedge.testing.service import FakeService

__all__ = ["service"]

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LINKED = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/kind"}, "b": {"$ref": "#/properties/a"}},
    "$defs": {"kind": {"enum": ["x", "y"]}},
}
DEEP = functools.reduce(lambda inner, _: {"items": inner}, range(900), {})
TEMPLATES = {
    "hermes": "{{ tools }}<tool_call></tool_call>",
    "llama3": '{{ tools }}{"name": function name, "parameters": ...}',
    "mistral": "{{ tools }}[TOOL_CALLS]",
}
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}


def tool(name="weather", parameters=CITY, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


class TellingTemplate(InstantTemplate):
    """Keeps what it was told."""

    def __init__(self, text):
        super().__init__()
        self._text = text

    def source(self, *, tools):
        return self._text

    def render(self, messages, *, add_generation_prompt=True, tools=None, variables=None):
        self.messages, self.tools = messages, tools
        return super().render(messages) + ("<think>\n" if "opens" in self._text else "")


@pytest.fixture(params=TEMPLATES)
def knowing(service, request):
    """Whose template knows tools."""
    template = TellingTemplate(TEMPLATES[request.param])
    made = FakeService(service.tokenizer, template, vocab_size=VOCABULARY)
    made.form = request.param
    return made


def test_the_template_is_told_of_tools_and_the_reply_of_their_names(knowing):
    request, reply = chat(knowing, tools=[tool(description="Of a city.", strict=True), tool("time", None)])
    assert knowing.template.tools[0]["function"] == {
        "name": "weather",
        "description": "Of a city.",
        "parameters": CITY,
    }
    assert knowing.template.tools[1]["function"] == {
        "name": "time",
        "parameters": {"type": "object", "properties": {}},
    }
    assert (reply.calls, reply.tools, reply.several) == (knowing.form, ("weather", "time"), True)
    assert request.grammar is None


@pytest.mark.parametrize("fields", [{"tool_choice": "none", "tools": [tool()]}, {"tools": []}, {}])
def test_without_tools_nothing_is_looked_for(knowing, fields):
    _, reply = chat(knowing, **fields)
    assert knowing.template.tools is None
    assert (reply.calls, reply.tools) == ("", ())


def texts_of(form, call):
    """(an answer's JSON)"""
    key = "parameters" if form == "llama3" else "arguments"
    value = {"name": call[0], key: call[1]}
    return [value] if form == "mistral" else value


@pytest.mark.parametrize(
    ("choice", "name"),
    [("required", "weather"), ({"type": "function", "function": {"name": "link"}}, "link")],
)
@pytest.mark.parametrize("several", [True, False])
def test_a_call_that_is_required_is_a_grammar(knowing, choice, name, several):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    tools = [tool(), tool("link", LINKED)]
    request, reply = chat(knowing, tools=tools, tool_choice=choice, parallel_tool_calls=several)
    assert reply.several == several
    text = request.grammar.text
    if knowing.form == "hermes":
        assert request.grammar.kind == "lark"
        assert ('"\\n" call)*' in text) == several
        schema = json.loads(text[text.index("%json ") + 6 :])
    else:
        schema = json.loads(text)
    good = ("weather", {"city": "x"}) if name == "weather" else ("link", {"a": "x", "b": "y"})
    jsonschema.validate(texts_of(knowing.form, good), schema)
    for bad in ((good[0], {"city": 1, "a": "z"}), ("other", {}), ("link", {"b": "z"})):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(texts_of(knowing.form, bad), schema)
    if name == "link":
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(texts_of(knowing.form, ("weather", {"city": "x"})), schema)


DATA = {"$ref": "#/a", "properties": {"$ref": "#"}}


@pytest.mark.parametrize("word", ["const", "default"])
@pytest.mark.parametrize("several", ["enum", "examples"])
def test_data_within_a_schema_stay_as_they_are(knowing, word, several):
    """Though they look like references, which are moved; where these words are names of properties they are no data."""
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    kind = {"$ref": "#/$defs/kind"}
    schema = {
        "type": "object",
        "properties": {
            "a": {word: DATA},
            "b": {several: [DATA]},
            word: kind,
            several: kind,
            "properties": kind,
        },
        "required": ["a", "b", word, several, "properties"],
        "$defs": {"kind": {"enum": ["x", "y"]}},
    }
    request, _ = chat(knowing, tools=[tool("f", schema)], tool_choice="required")
    text = request.grammar.text
    made = json.loads(text[text.index("%json ") + 6 :] if knowing.form == "hermes" else text)
    good = {"a": DATA, "b": DATA, word: "x", several: "y", "properties": "x"}
    jsonschema.validate(texts_of(knowing.form, ("f", good)), made)
    for name in (word, several, "properties"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(texts_of(knowing.form, ("f", good | {name: "z"})), made)


@pytest.mark.fault(
    "H3", "the arguments of a required call are an object, whatever else the schema of a tool allows"
)
@pytest.mark.parametrize(
    "parameters", [{"type": ["object", "null"]}, {"anyOf": [{"type": "string"}, {"type": "object"}]}]
)
def test_arguments_are_an_object(knowing, parameters):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    request, _ = chat(knowing, tools=[tool("f", parameters)], tool_choice="required")
    text = request.grammar.text
    schema = json.loads(text[text.index("%json ") + 6 :] if knowing.form == "hermes" else text)
    jsonschema.validate(texts_of(knowing.form, ("f", {})), schema)
    for bad in (None, "x"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(texts_of(knowing.form, ("f", bad)), schema)


@pytest.mark.parametrize(
    ("param", "fields", "why"),
    [
        ("tools", {"tools": {}}, "must be an array"),
        ("tools", {"tools": [tool()] * 129}, "at most 128"),
        ("tools", {"tools": [tool(), tool()]}, "two of the name"),
        ("tools[0].type", {"tools": [{"function": {"name": "f"}}]}, "it is 'function'"),
        ("tools[0].function.name", {"tools": [tool("a b")]}, "letters, digits"),
        ("tools[0].function.parameters", {"tools": [tool("a", [1])]}, "must be a JSON schema"),
        ("tools[0].function.parameters", {"tools": [tool("a", DEEP)]}, "more than 64 deep"),
        ("tools[0].function.parameters", {"tools": [tool("a", [])]}, "must be a JSON schema"),
        ("tools[0].function.parameters", {"tools": [tool("a", "")]}, "must be a JSON schema"),
        ("tools[0].function.parameters", {"tools": [tool("a", {"type": "string"})]}, "'type': 'object'"),
        ("tools[0].function.parameters", {"tools": [tool("a", {"type": ["null"]})]}, "'type': 'object'"),
        ("tool_choice", {"tool_choice": "required"}, "there are no 'tools'"),
        ("tool_choice", {"tool_choice": "must", "tools": [tool()]}, "must be 'none', 'auto'"),
        (
            "tool_choice",
            {"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": [tool()]},
            "names no function",
        ),
        (
            "tool_choice",
            {"tool_choice": "required", "tools": [tool()], "response_format": {"type": "json_object"}},
            "another form",
        ),
    ],
)
def test_tools_that_cannot_be_are_refused(knowing, param, fields, why):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    with pytest.raises(ApiError, match=why) as raised:
        chat(knowing, **fields)
    assert (raised.value.status, raised.value.param) == (400, param)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("no words of them", "does not support tools: its chat template knows none"),
        ("{{ tools }}", "does not support tools here: it writes calls in a form"),
    ],
)
def test_a_model_that_knows_no_tools_is_told_of(service, template, why):
    made = FakeService(service.tokenizer, TellingTemplate(template), vocab_size=VOCABULARY)
    with pytest.raises(ApiError, match=why) as raised:
        chat(made, tools=[tool()])
    assert raised.value.status == 400
    assert chat(made, tools=[tool()], tool_choice="none")[1].calls == ""


def test_calls_and_what_they_gave_are_part_of_a_chat(knowing):
    """Arguments are an object for the template, as far as they are one."""
    broken = CALL | {"function": {"name": "weather", "arguments": "{oh"}}
    said = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL, broken], "reasoning_content": "Hm."},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1", "name": "weather"},
    ]
    chat(knowing, messages=said, tools=[tool()])
    _, assistant, result = knowing.template.messages
    assert assistant["reasoning_content"] == "Hm."
    assert assistant["tool_calls"][0] == CALL | {
        "function": {"name": "weather", "arguments": {"city": "Paris"}}
    }
    assert assistant["tool_calls"][1]["function"]["arguments"] == "{oh"
    assert result == {"role": "tool", "content": "sunny", "tool_call_id": "c1", "name": "weather"}


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ("messages[0].tool_calls", {"role": "assistant", "tool_calls": {}}),
        ("messages[0].tool_calls[0]", {"role": "assistant", "tool_calls": ["x"]}),
        ("messages[0].tool_calls[0].function", {"role": "assistant", "tool_calls": [{"id": "x"}]}),
        ("messages[0].tool_calls[0].function.name", {"role": "assistant", "tool_calls": [{"function": {}}]}),
        ("messages[0].tool_call_id", {"role": "user", "content": "x", "tool_call_id": "y"}),
        ("messages[0].content", {"role": "tool", "tool_call_id": "y"}),
    ],
)
def test_calls_that_cannot_be_are_refused(knowing, param, message):
    with pytest.raises(ApiError) as raised:
        chat(knowing, messages=[message])
    assert raised.value.param == param


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
def test_arguments_are_bounded_as_bodies_are(knowing, text, why):
    with pytest.raises(ApiError, match=why) as raised:
        chat(knowing, messages=called_with("{}", text))
    assert raised.value.param == "messages[1].tool_calls[1].function.arguments"
    assert len(raised.value.message) < 200


def test_all_texts_of_a_request_are_bounded_together():
    """Strings within them have any number of commas."""
    value = {"a": [0] * 1_000, "b": ",[{" * 100_000}
    fields = BodyFields({"inner": {"text": json.dumps(value)}, "broken": "{oh", "object": {}})
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
def test_thoughts_are_looked_for_where_the_template_knows_them(service, template, thinking):
    made = FakeService(service.tokenizer, TellingTemplate(template), vocab_size=VOCABULARY)
    assert chat(made)[1].thinking == thinking


def test_an_answer_of_a_form_has_no_thoughts(service):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    made = FakeService(service.tokenizer, TellingTemplate("opens <think>"), vocab_size=VOCABULARY)
    free, formed = chat(made), chat(made, response_format={"type": "json_object"})
    assert formed[1].thinking == ""
    begun, closed = (
        service.tokenizer.decode(one.prompt_ids, skip_special=False) for one, _ in (free, formed)
    )
    assert closed.startswith(begun)
    assert closed.removeprefix(begun) == "</think>\n\n"


def test_the_template_s_own_text_says_what_it_knows():
    both = ChatTemplate({"default": "plain", "tool_use": "with tools"}, {})
    assert (both.source(tools=False), both.source(tools=True)) == ("plain", "with tools")
    assert ChatTemplate({"default": "plain"}, {}).source(tools=True) == "plain"
