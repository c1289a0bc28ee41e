"""Tools that a model may call: what a client may say of them, what the template is told, and what an answer must be."""

import functools
import json

import jsonschema
import pytest

from tests.unit.api.test_requests import VOCABULARY, InstantTemplate, chat, service, vain
from tpiedge.api.errors import ApiError
from tpiedge.api.fields import MAX_TEXT_VALUES, BodyFields
from tpiedge.api.responses_request import read_response
from tpiedge.api.tables import body
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer
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
        "description": "",
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


def schema_of(request):
    """The JSON schema that a grammar of calls holds."""
    text = request.grammar.text
    return json.loads(text[text.index("%json ") + 6 :].partition("\n")[0] if "%json" in text else text)


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object", "properties": {}}])
def test_a_tool_without_parameters_has_none(knowing, parameters):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    request, _ = chat(knowing, tools=[tool("f", parameters)], tool_choice="required")
    jsonschema.validate(texts_of(knowing.form, ("f", {})), schema_of(request))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(texts_of(knowing.form, ("f", {"a": 1})), schema_of(request))


def test_arguments_are_those_that_are_declared(knowing):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    tools = [tool("f", LINKED | {"$id": "https://example.org/f"}), tool("g", LINKED)]
    request, _ = chat(knowing, tools=tools, tool_choice="required")
    for name in ("f", "g"):
        jsonschema.validate(texts_of(knowing.form, (name, {"a": "x", "b": "y"})), schema_of(request))
        for bad in ({"a": "z"}, {"b": "z"}, {"c": 1}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(texts_of(knowing.form, (name, bad)), schema_of(request))
    assert [one["function"]["parameters"] for one in knowing.template.tools] == [
        tools[0]["function"]["parameters"],
        LINKED,
    ]


UNIQUE = {"type": "object", "properties": {"f": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_what_a_grammar_cannot_hold_of_arguments_is_told_or_refused(knowing, choice):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    named = vain(knowing, tools=[tool(), tool("f", UNIQUE)], tool_choice=choice)
    assert named == ("tools[].function.parameters.properties.f.uniqueItems",)
    with pytest.raises(
        ApiError, match=r"properties\.f\.uniqueItems' cannot be kept to, as 'strict' wants"
    ) as raised:
        chat(knowing, tools=[tool("f", UNIQUE, strict=True)], tool_choice=choice)
    assert raised.value.param == "tools[0].function.parameters"
    assert vain(knowing, tools=[tool("f", UNIQUE, strict=True)], tool_choice="none") == ()


def test_tools_that_are_too_many_for_a_grammar_are_told(service, monkeypatch):
    """Where one token opens a call, so that it would be kept to them."""
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    monkeypatch.setattr(Tokenizer, "token_id", lambda self, mark: 5 if mark == "<tool_call>" else None)
    made = FakeService(
        service.tokenizer, TellingTemplate(TEMPLATES["hermes"]), vocab_size=VOCABULARY, max_sequence=4096
    )
    wide = {"type": "object", "properties": {f"{number:0>30}": {"type": "string"} for number in range(600)}}
    assert chat(made, tools=[tool("f", wide)])[0].grammar.begins == 5
    assert vain(made, tools=[tool("f", wide)]) == ()
    many = [tool(name, wide) for name in ("f", "g", "h")]
    assert chat(made, tools=many)[0].grammar is None
    assert vain(made, tools=many) == ("tools.function.parameters",)


FORM = {"type": "json_schema", "json_schema": {"name": "out", "schema": CITY}}


def test_where_a_call_is_required_the_form_is_of_the_text_after_it(knowing):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    alone, _ = chat(knowing, tools=[tool()], tool_choice="required")
    both, reply = chat(knowing, tools=[tool()], tool_choice="required", response_format=FORM)
    assert both.grammar == alone.grammar
    assert (reply.required, reply.grammar) == (True, "tools")


def test_where_no_call_may_come_the_form_alone_holds(knowing):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    alone, _ = chat(knowing, response_format=FORM)
    both, reply = chat(knowing, tools=[tool()], tool_choice="none", response_format=FORM)
    assert both.grammar == alone.grammar
    assert (reply.required, reply.grammar) == (False, "response_format")


def test_where_a_call_may_come_the_answer_is_that_or_of_the_form(knowing):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    request, reply = chat(knowing, tools=[tool()], response_format=FORM)
    assert (request.grammar.kind, request.grammar.begins) == ("lark", None)
    assert request.grammar.text.startswith("start: calls | answer\n")
    assert (reply.required, reply.grammar, reply.calls) == (False, "response_format", knowing.form)


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_some_of_the_tools_are_allowed(knowing, mode):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    tools = [tool(), tool("time", None), tool("link", LINKED)]
    request, reply = chat(knowing, tools=tools, tool_choice=allowed(mode, "time", "link"))
    assert reply.tools == ("time", "link")
    assert (reply.required, request.grammar is not None) == (mode == "required", mode == "required")
    flat = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "time"}]}
    body = {"model": "babbler", "input": "hi", "tool_choice": flat}
    body["tools"] = [{"type": "function", **one["function"]} for one in tools]
    assert read_response(body, knowing, "resp-1").reply.tools == ("time",)


def test_functions_are_tools_of_which_one_is_called(knowing):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    functions = [{"name": "weather", "description": "Of a city.", "parameters": CITY}, {"name": "time"}]
    request, reply = chat(knowing, functions=functions)
    assert request.grammar is None
    assert (reply.tools, reply.several, reply.functions) == (("weather", "time"), False, True)
    assert knowing.template.tools[0] == {"type": "function", "function": functions[0]}
    assert chat(knowing, functions=functions, function_call="none")[1].tools == ()
    request, reply = chat(knowing, functions=functions, function_call={"name": "time"})
    assert reply.required
    jsonschema.validate(texts_of(knowing.form, ("time", {})), schema_of(request))
    assert not chat(knowing, functions=[], function_call="auto")[1].functions


def test_a_function_that_was_called_and_what_it_gave_are_part_of_a_chat(knowing):
    said = [
        USER,
        {"role": "assistant", "content": None, "function_call": CALL["function"]},
        {"role": "function", "name": "weather", "content": "sunny"},
    ]
    chat(knowing, messages=said, functions=[tool()["function"]])
    _, assistant, result = knowing.template.messages
    assert [one["function"] for one in assistant["tool_calls"]] == [
        {"name": "weather", "arguments": {"city": "Paris"}}
    ]
    assert (result["role"], result["name"], result["content"]) == ("tool", "weather", "sunny")


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("functions", {"functions": "weather"}),
        ("functions", {"functions": {"name": "x"}}),
        ("functions", {"functions": [tool()["function"]], "tools": [tool()]}),
        ("functions[0].name", {"functions": [{"name": "a b"}]}),
        ("functions[1]", {"functions": [{"name": "a"}, 7]}),
        ("function_call", {"functions": [{"name": "a"}], "function_call": {"name": "b"}}),
        ("function_call", {"function_call": {"name": "b"}}),
        ("messages[0].function_call", {"messages": [USER | {"function_call": {"name": "f"}}]}),
    ],
)
def test_functions_that_cannot_be_are_refused_by_their_old_names(knowing, param, fields):
    with pytest.raises(ApiError) as raised:
        chat(knowing, **fields)
    assert (raised.value.status, raised.value.param) == (400, param)
    assert "tool" not in raised.value.message or param == "functions"


@pytest.mark.parametrize(
    ("param", "fields", "why"),
    [
        (
            "tool_choice.allowed_tools.tools",
            {"tools": [tool()], "tool_choice": allowed("auto")},
            "at least one",
        ),
        (
            "tool_choice.allowed_tools.mode",
            {"tools": [tool()], "tool_choice": allowed("x", "weather")},
            "'auto' or",
        ),
        ("tool_choice", {"tools": [tool()], "tool_choice": allowed("auto", "rm")}, "names no function"),
        ("tools", {"tools": {}}, "must be an array"),
        ("tools", {"tools": [tool()] * 129}, "at most 128"),
        ("tools", {"tools": [tool(), tool()]}, "two of the name"),
        ("tools[0].type", {"tools": [{"function": {"name": "f"}}]}, "it is 'function'"),
        ("tools[0].function.name", {"tools": [tool("a b")]}, "letters, digits"),
        ("tools[0].function.parameters", {"tools": [tool("a", [1])]}, "must be an object"),
        ("tools[0].function.parameters", {"tools": [tool("a", DEEP)]}, "more than 64 deep"),
        ("tools[0].function.parameters", {"tools": [tool("a", "")]}, "must be an object"),
        ("tools[0].function.parameters", {"tools": [tool("a", {"type": "string"})]}, "'type': 'object'"),
        ("tools[0].function.parameters", {"tools": [tool("a", {"type": ["null"]})]}, "'type': 'object'"),
        ("tool_choice", {"tool_choice": "required"}, "there are no 'tools'"),
        ("tool_choice", {"tool_choice": "must", "tools": [tool()]}, "must be 'none', 'auto'"),
        (
            "tool_choice",
            {"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": [tool()]},
            "names no function",
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
