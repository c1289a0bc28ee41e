"""The grammars of calls of tools: of an answer that must be one, and of what follows where a model begins one.

A model that begins a call may write it with other spaces than those that a required one has, but with the arguments in
the order of their schema. So that nothing else of the answer changes, the grammar holds from the token that opens a
call to the end of the arguments, and not within thoughts.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from tpiedge.api.answer_grammar import grammar_of
from tpiedge.api.errors import refused
from tpiedge.api.service import Service
from tpiedge.api.tools import AskedTools, text_names
from tpiedge.engine.sampling import grammars_installed
from tpiedge.model.call_reader import CALL_MARKS, CallForm
from tpiedge.model.speech import THOUGHT_MARKS, Thinking
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.fields import MAX_GRAMMAR
from tpiedge.wire.requests import Grammar

_MAX_CALLS: Final = 16
#: Within a grammar of another kind, JSON is to be written as in answers that are nothing else.
_STRICT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
#: A model that is lost would write spaces without end. What is not supported of a schema is not looked at.
_FREE: Final = {"whitespace_pattern": r"[ \t\r\n]{0,16}", "lenient": True}
_FREE_RULES: Final = ("start: SPACES body REST", "SPACES: /[ \\t\\r\\n]{0,16}/", "REST: /(.|\\n)*/")
_Tools = Mapping[str, Mapping[str, Any]]
#: A slash within a regular expression, or what is escaped already.
_SLASH: Final = re.compile(r"\\.|/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Style:
    """Writes the parts of a rule. `free` leaves the spaces to the model."""

    tokenizer: Tokenizer | None
    free: bool = False

    def mark(self, text: str) -> str:
        """A text that may be a special token, which has no text for a grammar."""
        token = self.tokenizer.token_id(text) if self.tokenizer is not None else None
        special = self.tokenizer is not None and token in self.tokenizer.special_ids
        return f"<[{token}]>" if special else json.dumps(text)

    def spaces(self, usual: str = "\n") -> str:
        return "SPACES" if self.free else json.dumps(usual) if usual else ""

    def json(self, schema: Mapping[str, Any]) -> str:
        return f"%json {json.dumps({**schema, 'x-guidance': _FREE if self.free else _STRICT})}"


def required_call_grammar(tools: AskedTools, form: CallForm, service: Service) -> Grammar:
    """The grammar of an answer that must be a call, or several. Raises ApiError."""
    return _grammar(["start: calls"], _calls(tools, form, service), "tools", service)


def call_or_form_grammar(
    tools: AskedTools, form: CallForm, answer: Grammar, param: str, service: Service
) -> Grammar:
    """The grammar of an answer that is a call, or several, or else what `answer` describes, which came as the field
    `param`. Raises ApiError."""
    if answer.kind == "json":
        nested = _Style(None).json(json.loads(answer.text))
    elif answer.kind == "regex":
        escaped = _SLASH.sub(lambda found: "\\/" if found[0] == "/" else found[0], answer.text)
        nested = f"/{escaped}/"
    else:
        nested = f"%lark {{\n{answer.text}\n}}"
    rules = chain(_calls(tools, form, service), [f"answer: {nested}"])
    return _grammar(["start: calls | answer"], rules, param, service)


def _calls(tools: AskedTools, form: CallForm, service: Service) -> Iterator[str]:
    """The rules of `calls`, one call or several."""
    chosen = tools.callable(tools.required or tools.names)
    if form in ("llama3", "mistral"):
        most = _MAX_CALLS if tools.several else 1
        yield f"calls: {_Style(None).json(_enveloped(chosen, form, most))}"
        return
    style = _Style(service.tokenizer)
    mark, between = style.mark, style.spaces()
    opener, closing, before, after = mark(CALL_MARKS[form].openers[-1]), "", "", ""
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
    """The grammar of what follows where the model begins a call of its own accord. None where there can be none: where
    calls are not known by a token, or with more tools than a grammar may have."""
    tokenizer = service.tokenizer
    if tokenizer is None or not calls_are_known_by_tokens(form, thinking, service):
        return None
    begins = tokenizer.token_id(CALL_MARKS[form].openers[-1])
    thoughts = [tokenizer.token_id(mark) for mark in THOUGHT_MARKS] if thinking else []
    known = tuple(token for token in thoughts if token is not None)
    style = _Style(tokenizer, free=True)
    text = _joined(_FREE_RULES, _body(tools.callable(tools.names), form, style))
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


def _joined(start: Sequence[str], rules: Iterable[str]) -> str | None:
    """Joins the rules, or returns None where they are longer than a grammar may be. Then no more of them are made: they
    may copy parts of a schema."""
    found, length = [*start], sum(map(len, start))
    for rule in rules:
        found.append(rule)
        length += 1 + len(rule)
        if length > MAX_GRAMMAR:
            return None
    return "\n".join(found)


def _grammar(start: Sequence[str], rules: Iterable[str], param: str, service: Service) -> Grammar:
    text = _joined(start, rules)
    if text is None:
        why = f"'tools' make a grammar of more than {MAX_GRAMMAR} characters: give fewer or smaller ones"
        raise refused(why, "tools")
    return grammar_of("lark", text, param, service)


def _body(tools: _Tools, form: CallForm, style: _Style) -> Iterator[str]:
    """The rules of what comes after the mark that opens a call."""
    if form in ("hermes", "llama3", "mistral"):
        yield f"body: {style.json(_enveloped(tools, form, _MAX_CALLS))}"
        return
    yield "body: " + " | ".join(f"tool_{at}" for at in range(len(tools)))
    for at, (name, schema) in enumerate(tools.items()):
        if form == "qwen-xml":
            yield from _tagged(name, schema, at, style)
        else:
            yield f"tool_{at}: {_named(json.dumps(name), schema, form, style)}"
    if form == "qwen-xml":
        yield r"text[lazy]: /(.|\n)*<\/parameter>/"


def _named(name: str, schema: Mapping[str, Any], form: CallForm, style: _Style) -> str:
    """A name, a mark and JSON."""
    arguments = f"{style.spaces('')} {style.json(schema)}"
    if form == "deepseek-v31":
        return f"{name} {style.mark('<｜tool▁sep｜>')} {arguments}"
    if form == "deepseek-v3":
        fence = f"{style.spaces()} {json.dumps('```json')} {style.spaces()}"
        return f'"function" {style.mark("<｜tool▁sep｜>")} {name} {fence} {arguments}'
    identity = f"({style.mark('[CALL_ID]')} /[a-zA-Z0-9]{{1,64}}/)?"
    return f"{name} {identity} {style.mark('[ARGS]')} {arguments}"


def _tagged(name: str, schema: Mapping[str, Any], at: int, style: _Style) -> Iterator[str]:
    """Tags around the values of parameters."""
    break_ = style.spaces()
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    parts, texts = [], frozenset(text_names(schema))
    for number, (key, value) in enumerate(properties.items() if isinstance(properties, dict) else ()):
        rule = f"value_{at}_{number}"
        parts.append(rule if key in needed else f"{rule}?")
        if key in texts or value in (True, {}):
            said = _text_of(value, break_)
        else:
            alone = value if isinstance(value, dict) else {}
            if '"$ref"' in json.dumps(alone):
                alone = {**alone, "$defs": schema.get("$defs", {})}
            said = f'{break_} {style.json(alone)} {break_} "</parameter>" {break_}'
        yield f"{rule}: {json.dumps(f'<parameter={key}>')} {said}"
    if schema.get("additionalProperties") is not False:
        parts.append(f"other_{at}*")
        yield f'other_{at}: "<parameter=" /[^>\\n]{{1,64}}/ ">" text {break_}'
    opened = f"{json.dumps(f'<function={name}>')} {break_}"
    yield f'tool_{at}: {opened} {" ".join(parts)} "</function>"'


def _text_of(schema: object, break_: str) -> str:
    """A text as it is, to the parameter's end."""
    choices = None
    if isinstance(schema, dict):
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not choices or not isinstance(choices, list):
        return f"text {break_}"
    written = " | ".join(json.dumps(str(choice), ensure_ascii=False) for choice in choices)
    return f'{break_} ({written}) {break_} "</parameter>" {break_}'


def _enveloped(tools: _Tools, form: CallForm, most: int) -> dict[str, Any]:
    """Name and arguments as one object, or a list of them."""
    key = "parameters" if form == "llama3" else "arguments"
    choices = []
    for name, schema in tools.items():
        arguments = {word: value for word, value in schema.items() if word != "$defs"}
        choices.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, key: arguments},
                "required": ["name", key],
                "additionalProperties": False,
            }
        )
    calls: dict[str, Any] = {"anyOf": choices}
    if form == "mistral":
        calls = {"type": "array", "items": calls, "minItems": 1, "maxItems": most}
    definitions = {name: value for one in tools.values() for name, value in one.get("$defs", {}).items()}
    return {**calls, "$defs": definitions} if definitions else calls
