"""The grammars of calls of tools: of an answer that must be one, and of what follows where a model begins one.

A model that begins a call may write it with other spaces than those that a required one has, but with the arguments in
the order of their schema. So that nothing else of the answer changes, the grammar holds from the token that opens a
call to the end of the arguments, and not within thoughts.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from tpiedge.api.answer_grammar import grammar_of
from tpiedge.api.errors import refused
from tpiedge.api.service import Service
from tpiedge.api.tools import AskedTools, CallableTool, text_names
from tpiedge.engine.sampling import grammars_installed
from tpiedge.model.call_reader import CALL_MARKS, CallForm
from tpiedge.model.speech import THOUGHT_MARKS, Thinking
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.limits import MAX_GRAMMAR
from tpiedge.wire.requests import Grammar

_MAX_CALLS: Final = 16
#: Within a grammar of another kind, JSON is to be written as in answers that are nothing else.
_STRICT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
#: A model that is lost would write spaces without end. What is not supported of a schema is not looked at.
_FREE: Final = {"whitespace_pattern": r"[ \t\r\n]{0,16}", "lenient": True}
_SPACES: Final = "SPACES: /[ \\t\\r\\n]{0,16}/"
_REST: Final = "REST: /(.|\\n)*/"
_TEXT: Final = "text[lazy]: /(.|\\n)*<\\/parameter>/"
#: A slash within a regular expression, or what is escaped already.
_SLASH: Final = re.compile(r"\\.|/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Style:
    """`mark` makes a part of a rule of a text, which may be a special token, and `spaces` of white space that is usual,
    if any; `json`: how JSON is written."""

    mark: Callable[[str], str]
    spaces: Callable[[str], str]
    json: Mapping[str, object]


def required_call_grammar(tools: AskedTools, form: CallForm, service: Service) -> Grammar | None:
    """Of an answer that is a call, or several; None where it need not be. Raises ApiError."""
    if not tools.required:
        return None
    if form in ("llama3", "mistral"):
        schema = _enveloped(tools.callable(tools.required), form, _MAX_CALLS if tools.several else 1)
        return grammar_of("json", json.dumps(schema), "tools", service)
    return grammar_of(
        "lark", _checked(_joined(["start: calls"], _calls(tools, form, service))), "tools", service
    )


def call_or_form_grammar(
    tools: AskedTools, form: CallForm, answer: Grammar, param: str, service: Service
) -> Grammar:
    """Of an answer that is a call, or several, or else what `answer` describes, which came as the field `param`. Raises
    ApiError."""
    rules = _calls(tools, form, service)
    text = _checked(_joined(["start: calls | answer"], chain(rules, [f"answer: {_nested(answer)}"])))
    return grammar_of("lark", text, param, service)


def _nested(answer: Grammar) -> str:
    """The grammar as a part of another one."""
    if answer.kind == "json":
        return f"%json {json.dumps({**json.loads(answer.text), 'x-guidance': _STRICT})}"
    if answer.kind == "regex":
        return f"/{_SLASH.sub(_escaped_slash, answer.text)}/"
    return f"%lark {{\n{answer.text}\n}}"


def _escaped_slash(found: re.Match[str]) -> str:
    return r"\/" if found.group() == "/" else found.group()


def _calls(tools: AskedTools, form: CallForm, service: Service) -> Iterator[str]:
    """The rules of `calls`, one call or several."""
    chosen = tools.callable(tools.required or tools.names)
    if form in ("llama3", "mistral"):
        most = _MAX_CALLS if tools.several else 1
        yield f"calls: %json {json.dumps({**_enveloped(chosen, form, most), 'x-guidance': _STRICT})}"
        return
    mark = _marking(service.tokenizer)
    style = _Style(mark, lambda text: json.dumps(text) if text else "", _STRICT)
    opener, closing, before, after = mark(CALL_MARKS[form].openers[-1]), "", "", ""
    between = json.dumps("\n")
    match form:
        case "hermes" | "qwen-xml":
            opener, closing = f"{opener} {between}", f"{between} {mark('</tool_call>')}"
        case "mistral-args":
            between = closing = ""
        case "deepseek-v3" | "deepseek-v31":
            before, after = mark(CALL_MARKS[form].openers[0]), mark("<｜tool▁calls▁end｜>")
            closing = mark("<｜tool▁call▁end｜>")
            if form == "deepseek-v3":
                closing = f'{between} "```" {closing}'
            else:
                between = ""
    more = f" ({between} call)*" if tools.several else ""
    yield f"calls: {before} call{more} {after}"
    yield f"call: {opener} body {closing}"
    yield from _body(chosen, form, style)


def begun_call_grammar(
    tools: AskedTools, form: CallForm, thinking: Thinking, service: Service
) -> Grammar | None:
    """Of what follows where the model begins a call of its own accord. None where it cannot be kept to that: where
    calls are not known by a token, or with more tools than a grammar may have."""
    tokenizer = service.tokenizer
    if tokenizer is None or not calls_are_known_by_tokens(form, thinking, service):
        return None
    begins = tokenizer.token_id(CALL_MARKS[form].openers[-1])
    thoughts = [tokenizer.token_id(mark) for mark in THOUGHT_MARKS] if thinking else []
    known = tuple(token for token in thoughts if token is not None)
    style = _Style(_marking(tokenizer), lambda _: "SPACES", _FREE)
    start = ["start: SPACES body REST", _SPACES, _REST]
    text = _joined(start, _body(tools.callable(tools.names), form, style))
    if text is None:
        return None
    return replace(grammar_of("lark", text, "tools", service), begins=begins, thoughts=known)


def calls_are_known_by_tokens(form: CallForm, thinking: Thinking, service: Service) -> bool:
    """Whether a model can be kept to what follows where it begins a call: with llguidance, and a tokenizer that has one
    token for what opens a call, and for what opens and closes thoughts."""
    tokenizer = service.tokenizer
    if not form or not grammars_installed() or tokenizer is None or not service.eos_ids:
        return False
    marks = (CALL_MARKS[form].openers[-1], *(THOUGHT_MARKS if thinking else ()))
    return all(tokenizer.token_id(mark) is not None for mark in marks)


def _marking(tokenizer: Tokenizer | None) -> Callable[[str], str]:
    """Special tokens have no text for a grammar."""

    def mark(text: str) -> str:
        token = tokenizer.token_id(text) if tokenizer is not None else None
        special = tokenizer is not None and token in tokenizer.special_ids
        return f"<[{token}]>" if special else json.dumps(text)

    return mark


def _joined(start: Sequence[str], rules: Iterable[str]) -> str | None:
    """None where they are longer than a grammar: rules that copy parts of a schema are then made no further."""
    found, length = [*start], sum(map(len, start))
    for rule in rules:
        found.append(rule)
        length += 1 + len(rule)
        if length > MAX_GRAMMAR:
            return None
    return "\n".join(found)


def _checked(text: str | None) -> str:
    if text is not None:
        return text
    why = f"'tools' make a grammar of more than {MAX_GRAMMAR} characters: give fewer or smaller ones"
    raise refused(why, "tools")


def _body(tools: Sequence[CallableTool], form: CallForm, style: _Style) -> Iterator[str]:
    """The rules of what comes after the mark that opens a call."""
    if form in ("hermes", "llama3", "mistral"):
        yield f"body: {_json(_enveloped(tools, form, _MAX_CALLS), style)}"
        return
    yield "body: " + " | ".join(f"tool_{at}" for at in range(len(tools)))
    for at, tool in enumerate(tools):
        if form == "qwen-xml":
            yield from _tagged(tool, at, style)
        else:
            yield f"tool_{at}: {_named(tool, form, style)}"
    if form == "qwen-xml":
        yield _TEXT


def _named(tool: CallableTool, form: CallForm, style: _Style) -> str:
    """A name, a mark and JSON."""
    name, arguments = json.dumps(tool.name), f"{style.spaces('')} {_json(tool.schema, style)}"
    if form == "deepseek-v31":
        return f"{name} {style.mark('<｜tool▁sep｜>')} {arguments}"
    if form == "deepseek-v3":
        fence = f"{style.spaces(chr(10))} {json.dumps('```json')} {style.spaces(chr(10))}"
        return f'"function" {style.mark("<｜tool▁sep｜>")} {name} {fence} {arguments}'
    identity = f"({style.mark('[CALL_ID]')} /[a-zA-Z0-9]{{1,64}}/)?"
    return f"{name} {identity} {style.mark('[ARGS]')} {arguments}"


def _tagged(tool: CallableTool, at: int, style: _Style) -> Iterator[str]:
    """Tags around the values of parameters."""
    schema = tool.schema
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    parts, definitions, texts = [], schema.get("$defs", {}), frozenset(text_names(schema))
    for number, (key, value) in enumerate(properties.items() if isinstance(properties, dict) else ()):
        rule = f"value_{at}_{number}"
        parts.append(rule if key in needed else f"{rule}?")
        said = (
            _text_of(value, style)
            if key in texts or value in (True, {})
            else _json_of(value, definitions, style)
        )
        yield f"{rule}: {json.dumps(f'<parameter={key}>')} {said}"
    if _may_have_others(schema):
        parts.append(f"other_{at}*")
        yield f'other_{at}: "<parameter=" /[^>\\n]{{1,64}}/ ">" text {style.spaces(chr(10))}'
    opened = f"{json.dumps('<function=' + tool.name + '>')} {style.spaces(chr(10))}"
    yield f'tool_{at}: {opened} {" ".join(parts)} "</function>"'


def _may_have_others(schema: Mapping[str, Any]) -> bool:
    """Whether there may be other parameters than those that the schema names."""
    return schema.get("additionalProperties") is not False


def _text_of(schema: object, style: _Style) -> str:
    """A text as it is, to the parameter's end."""
    break_, choices = style.spaces("\n"), None
    if isinstance(schema, dict):
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not choices or not isinstance(choices, list):
        return f"text {break_}"
    written = " | ".join(json.dumps(str(choice), ensure_ascii=False) for choice in choices)
    return f'{break_} ({written}) {break_} "</parameter>" {break_}'


def _json_of(schema: object, definitions: Mapping[str, Any], style: _Style) -> str:
    alone, break_ = _alone(schema, definitions) if isinstance(schema, dict) else {}, style.spaces("\n")
    return f'{break_} {_json(alone, style)} {break_} "</parameter>" {break_}'


def _alone(schema: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with all definitions, where it refers to one."""
    return {**schema, "$defs": definitions} if '"$ref"' in json.dumps(schema) else schema


def _json(schema: Mapping[str, Any], style: _Style) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': style.json})}"


def _enveloped(tools: Sequence[CallableTool], form: CallForm, most: int) -> dict[str, Any]:
    """Name and arguments as one object, or a list of them."""
    key = "parameters" if form == "llama3" else "arguments"
    calls: dict[str, Any] = {"anyOf": [_call_schema(tool, key) for tool in tools]}
    if form == "mistral":
        calls = {"type": "array", "items": calls, "minItems": 1, "maxItems": most}
    definitions = {name: value for tool in tools for name, value in tool.schema.get("$defs", {}).items()}
    return {**calls, "$defs": definitions} if definitions else calls


def _call_schema(tool: CallableTool, key: str) -> dict[str, Any]:
    arguments = {word: value for word, value in tool.schema.items() if word != "$defs"}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, key: arguments},
        "required": ["name", key],
        "additionalProperties": False,
    }
