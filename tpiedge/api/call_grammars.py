"""The grammars of calls of tools: of an answer that must be one, and of what follows where a model begins one.

A model that begins a call may write it with other spaces than those that a required one has, but with the arguments in
the order of their schema. So that nothing else of the answer changes, the grammar holds from the token that opens a
call to the end of the arguments, and not within thoughts.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tpiedge.api.answer_grammar import grammar_of
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.service import Service
from tpiedge.api.tools import AskedTools, text_names
from tpiedge.engine.sampling import grammars_installed
from tpiedge.model.call_forms import CALL_MARKS, CallForm
from tpiedge.model.speech import THOUGHT_MARKS, Thinking
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.limits import MAX_GRAMMAR
from tpiedge.wire.requests import Grammar

__all__ = ["begun_call_grammar", "required_call_grammar"]

_MAX_CALLS: Final = 16
#: Within a grammar of another kind, JSON is to be written as in answers that are nothing else.
_STRICT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
#: A model that is lost would write spaces without end. What is not supported of a schema is not looked at.
_FREE: Final = {"whitespace_pattern": r"[ \t\r\n]{0,16}", "lenient": True}
_SPACES: Final = "SPACES: /[ \\t\\r\\n]{0,16}/"
_REST: Final = "REST: /(.|\\n)*/"
_TEXT: Final = "text[lazy]: /(.|\\n)*<\\/parameter>/"
#: Where a schema has one of them, its properties may not be all.
_OTHERS: Final = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties")
_DEFINITIONS: Final = ("$defs", "definitions")
#: Whose keys are names, not words of JSON Schema, and whose values are schemas.
_NAMED: Final = (*_DEFINITIONS, "properties", "patternProperties", "dependentSchemas", "dependencies")
#: Whose values are no schemas.
_DATA: Final = ("const", "enum", "default", "examples")
#: Of a name: written otherwise in a reference.
_ESCAPED: Final = re.compile("[/~%]")


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
    chosen = [tool["function"] for tool in tools.shown if tool["function"]["name"] in tools.required]
    if form in ("llama3", "mistral"):
        schema = _enveloped(chosen, form, _MAX_CALLS if tools.several else 1)
        return grammar_of("json", json.dumps(schema), "tools", service)
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
    start = [f"start: {before} call{more} {after}", f"call: {opener} body {closing}"]
    text = _joined(start, _body(chosen, form, style))
    if text is None:
        raise _too_long()
    return grammar_of("lark", text, "tools", service)


def begun_call_grammar(
    tools: AskedTools, form: CallForm, thinking: Thinking, service: Service
) -> Grammar | None:
    """Of what follows where the model begins a call of its own accord. None where it cannot be kept to that: without
    llguidance, or a tokenizer that has one token for what opens a call, or with more tools than a grammar may have."""
    tokenizer = service.tokenizer
    if not form or not grammars_installed() or tokenizer is None or not service.eos_ids:
        return None
    begins = tokenizer.token_id(CALL_MARKS[form].openers[-1])
    thoughts = [tokenizer.token_id(mark) for mark in THOUGHT_MARKS] if thinking else []
    known = tuple(token for token in thoughts if token is not None)
    if begins is None or len(known) < len(thoughts):
        return None
    style = _Style(_marking(tokenizer), lambda _: "SPACES", _FREE)
    shown = [tool["function"] for tool in tools.shown]
    start = ["start: SPACES body REST", _SPACES, _REST]
    text = _joined(start, _body(shown, form, style))
    if text is None:
        return None
    return replace(grammar_of("lark", text, "tools", service), begins=begins, thoughts=known)


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


def _too_long() -> ApiError:
    why = f"'tools' make a grammar of more than {MAX_GRAMMAR} characters: give fewer or smaller ones"
    return refused(why, "tools")


def _body(tools: Sequence[Mapping[str, Any]], form: CallForm, style: _Style) -> Iterator[str]:
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


def _named(tool: Mapping[str, Any], form: CallForm, style: _Style) -> str:
    """A name, a mark and JSON."""
    name, arguments = json.dumps(tool["name"]), f"{style.spaces('')} {_json(_arguments(tool), style)}"
    if form == "deepseek-v31":
        return f"{name} {style.mark('<｜tool▁sep｜>')} {arguments}"
    if form == "deepseek-v3":
        fence = f"{style.spaces(chr(10))} {json.dumps('```json')} {style.spaces(chr(10))}"
        return f'"function" {style.mark("<｜tool▁sep｜>")} {name} {fence} {arguments}'
    identity = f"({style.mark('[CALL_ID]')} /[a-zA-Z0-9]{{1,64}}/)?"
    return f"{name} {identity} {style.mark('[ARGS]')} {arguments}"


def _tagged(tool: Mapping[str, Any], at: int, style: _Style) -> Iterator[str]:
    """Tags around the values of parameters."""
    schema = tool["parameters"]
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    parts, definitions, texts = [], _definitions(schema), frozenset(text_names(schema))
    for number, (key, value) in enumerate(properties.items() if isinstance(properties, dict) else ()):
        rule = f"value_{at}_{number}"
        parts.append(rule if key in needed else f"{rule}?")
        said = _text_of(value, style) if key in texts else _json_of(value, definitions, style)
        yield f"{rule}: {json.dumps(f'<parameter={key}>')} {said}"
    if _may_have_others(schema):
        parts.append(f"other_{at}*")
        yield f'other_{at}: "<parameter=" /[^>\\n]{{1,64}}/ ">" text {style.spaces(chr(10))}'
    opened = f"{json.dumps('<function=' + tool['name'] + '>')} {style.spaces(chr(10))}"
    yield f'tool_{at}: {opened} {" ".join(parts)} "</function>"'


def _may_have_others(schema: Mapping[str, Any]) -> bool:
    """Whether there may be other parameters than those that the schema names."""
    more = schema.get("additionalProperties")
    unnamed = more is None and not schema.get("properties")
    return unnamed or more not in (None, False) or any(key in schema for key in _OTHERS)


def _text_of(schema: Mapping[str, Any], style: _Style) -> str:
    """A text as it is, to the parameter's end."""
    choices, break_ = schema.get("enum", [schema["const"]] if "const" in schema else None), style.spaces("\n")
    if not choices or not isinstance(choices, list):
        return f"text {break_}"
    written = " | ".join(json.dumps(str(choice), ensure_ascii=False) for choice in choices)
    return f'{break_} ({written}) {break_} "</parameter>" {break_}'


def _json_of(schema: object, definitions: Mapping[str, Any], style: _Style) -> str:
    alone, break_ = _alone(schema, definitions) if isinstance(schema, dict) else {}, style.spaces("\n")
    return f'{break_} {_json(alone, style)} {break_} "</parameter>" {break_}'


def _definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What `$ref` may name where there is only a part of the schema; nothing where that refers to more."""
    found = {
        f"#/{kind}/{name}": value
        for kind in _DEFINITIONS
        if isinstance(schema.get(kind), dict)
        for name, value in schema[kind].items()
        if not _ESCAPED.search(name)
    }
    return found if found.keys() >= {*_references([*found.values()])} else {}


def _alone(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the definitions that it needs; free where it refers to anything else."""
    left: list[Any] = [schema]
    found: dict[str, dict[str, Any]] = {}
    while left:
        for reference in _references(left.pop()):
            if reference not in definitions:
                return {}
            _, kind, name = reference.split("/")
            if name not in found.setdefault(kind, {}):
                found[kind][name] = definitions[reference]
                left.append(definitions[reference])
    return {**schema, **found}


def _references(schema: object) -> Iterator[str]:
    """All that the schema, or those of a list, refer to, by their parts."""
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)
    elif isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for key, value in schema.items():
            named = key in _NAMED and isinstance(value, dict)
            yield from _references([*value.values()] if named else [] if key in _DATA else value)


def _json(schema: Mapping[str, Any], style: _Style) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': style.json})}"


def _enveloped(tools: Sequence[Mapping[str, Any]], form: CallForm, most: int) -> dict[str, Any]:
    """Name and arguments as one object, or a list of them."""
    key = "parameters" if form == "llama3" else "arguments"
    calls: dict[str, Any] = {"anyOf": [_call_schema(tool, at, key, form) for at, tool in enumerate(tools)]}
    return {"type": "array", "items": calls, "minItems": 1, "maxItems": most} if form == "mistral" else calls


def _call_schema(tool: Mapping[str, Any], at: int, key: str, form: CallForm) -> dict[str, Any]:
    place = f"#/{'items/' if form == 'mistral' else ''}anyOf/{at}/properties/{key}"
    return {
        "type": "object",
        "properties": {"name": {"const": tool["name"]}, key: _moved(_arguments(tool), place)},
        "required": ["name", key],
        "additionalProperties": False,
    }


def _arguments(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of its arguments, which are an object also where it allows other values, too."""
    return {**tool["parameters"], "type": "object"}


def _moved(schema: Any, place: str) -> Any:
    """The schema, whose references to parts of itself stay so at another place."""
    if isinstance(schema, list):
        return [_moved(one, place) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            moved[key] = {name: _moved(one, place) for name, one in value.items()}
        else:
            moved[key] = value if key in _DATA else _moved(value, place)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved
