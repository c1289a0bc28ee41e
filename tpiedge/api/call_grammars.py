"""Makes grammars for answers that must be tool calls, and for tool calls that the model begins by itself."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from tpiedge.api.answer_grammar import grammar_of
from tpiedge.api.errors import refused
from tpiedge.api.grammar_schema import SchemaTooLarge
from tpiedge.api.tools import ParsedTools, constants, text_names
from tpiedge.engine.sampling import grammars_installed
from tpiedge.local.served_models import ServedModel
from tpiedge.model.call_reader import CALL_MARKS, CallForm
from tpiedge.model.output import REASONING_MARKS, Thinking
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.fields import MAX_GRAMMAR
from tpiedge.wire.requests import Grammar

_MAX_CALLS: Final = 16
#: JSON in calls has the same spaces as an answer in JSON.
_STRICT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
#: Without a limit, a model can write spaces for ever. "lenient": unsupported words of a schema are skipped.
_FREE: Final = {"whitespace_pattern": r"[ \t\r\n]{0,16}", "lenient": True}
_FREE_RULES: Final = ("start: SPACES body REST", "SPACES: /[ \\t\\r\\n]{0,16}/", "REST: /(.|\\n)*/")
_Tools = Mapping[str, Mapping[str, Any]]
#: A slash within a regular expression, or an escape.
_SLASH: Final = re.compile(r"\\.|/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Style:
    tokenizer: Tokenizer | None
    free: bool = False

    def mark(self, text: str) -> str:
        token = self.tokenizer.token_id(text) if self.tokenizer is not None else None
        special = self.tokenizer is not None and token in self.tokenizer.special_ids
        return f"<[{token}]>" if special else json.dumps(text)

    def spaces(self, usual: str = "\n") -> str:
        return "SPACES" if self.free else json.dumps(usual) if usual else ""

    def json(self, schema: Mapping[str, Any]) -> str:
        return f"%json {json.dumps({**schema, 'x-guidance': _FREE if self.free else _STRICT})}"


def call_or_form_grammar(
    tools: ParsedTools, form: CallForm, answer: Grammar | None, param: str, model: ServedModel
) -> Grammar | None:
    """Returns a grammar of tool calls. If no call is required, the grammar also allows texts of the grammar `answer`.
    None, as `answer` or as the result, allows any text. `param` names the request's field with `answer`. Raises
    ApiError."""
    start, rules = "start: calls", _calls(tools, form, model)
    if tools.required:
        param = tools.field
    elif answer is None or not tools.shown:
        return answer
    else:
        nested, mark = _nested(answer), _Style(model.tokenizer).mark
        if form == "harmony":
            nested = f'{mark("<|channel|>")} "final" {mark("<|message|>")} {nested}'
        start, rules = f"{start} | answer", chain(rules, [f"answer: {nested}"])
    try:
        text = _joined([start], rules)
    except SchemaTooLarge:
        why = f"'{tools.field}' make a grammar of more than {MAX_GRAMMAR} characters: give fewer or smaller ones"
        raise refused(why, tools.field) from None
    return grammar_of("lark", text, param, model)


def _nested(answer: Grammar) -> str:
    if answer.kind == "json":
        return _Style(None).json(json.loads(answer.text))
    if answer.kind == "lark":
        return f"%lark {{\n{answer.text}\n}}"
    escaped = _SLASH.sub(lambda found: "\\/" if found[0] == "/" else found[0], answer.text)
    return f"/{escaped}/"


def _calls(tools: ParsedTools, form: CallForm, model: ServedModel) -> Iterator[str]:
    chosen = tools.callable(tools.required)
    if form in ("llama3", "mistral"):
        most = _MAX_CALLS if tools.several else 1
        yield f"calls: {_Style(None).json(_enveloped(chosen, form, most))}"
        return
    style, openers = _Style(model.tokenizer), CALL_MARKS[form].openers
    line, opener = style.spaces(), style.mark(openers[-1])
    before, closing, after, between = "", "", "", ""
    if form in ("hermes", "qwen-xml"):
        opener, closing, between = f"{opener} {line}", f"{line} {style.mark('</tool_call>')}", line
    elif form == "harmony":
        between = f'{style.mark("<|end|>")} {style.mark("<|start|>")} "assistant"'
    elif form != "mistral-args":
        before, after = style.mark(openers[0]), style.mark("<｜tool▁calls▁end｜>")
        closing = style.mark("<｜tool▁call▁end｜>")
    if form == "deepseek-v3":
        closing, between = f'{line} "```" {closing}', line
    more = f" ({between} call)*" if tools.several else ""
    yield f"calls: {before} call{more} {after}"
    yield f"call: {opener} body {closing}"
    yield from _body(chosen, form, style)


def begun_call_grammar(
    tools: ParsedTools, form: CallForm, thinking: Thinking, model: ServedModel
) -> Grammar | None:
    """Makes the grammar of a call that the model begins; None if that is impossible. Raises SchemaTooLarge,
    ApiError."""
    tokenizer = model.tokenizer
    if not form or not grammars_installed() or tokenizer is None or not model.eos_ids:
        return None
    # In Harmony's format, the grammar also has the headers of other messages.
    marks = (CALL_MARKS[form].openers[-1], *(REASONING_MARKS if thinking and form != "harmony" else ()))
    tokens = [tokenizer.token_id(mark) for mark in marks]
    known = [token for token in tokens if token is not None]
    if len(known) < len(marks):
        return None
    style = _Style(tokenizer, free=True)
    text = _joined(_FREE_RULES, _body(tools.callable(), form, style))
    grammar = grammar_of("lark", text, "tools", model)
    return replace(grammar, begins=known[0], thoughts=tuple(known[1:]))


def _joined(start: Sequence[str], rules: Iterable[str]) -> str:
    found, length = [*start], sum(map(len, start))
    for rule in rules:
        found.append(rule)
        length += 1 + len(rule)
        if length > MAX_GRAMMAR:
            raise SchemaTooLarge
    return "\n".join(found)


def _body(tools: _Tools, form: CallForm, style: _Style) -> Iterator[str]:
    if form in ("hermes", "llama3", "mistral"):
        yield f"body: {style.json(_enveloped(tools, form, _MAX_CALLS))}"
        return
    others = ["other"] if form == "harmony" and style.free else []
    yield "body: " + " | ".join([*others, *(f"tool_{at}" for at in range(len(tools)))])
    for other in others:
        yield f'{other}: ("analysis" | "commentary" | "final") {_message(style)}'
    for at, (name, schema) in enumerate(tools.items()):
        if form == "qwen-xml":
            yield from _tagged(name, schema, at, style)
        else:
            yield f"tool_{at}: {_named(json.dumps(name), schema, form, style)}"
    if form == "qwen-xml":
        yield r"text[lazy]: /(.|\n)*<\/parameter>/"


def _message(style: _Style) -> str:
    """Returns the end of a header in Harmony's format."""
    constrain, text = style.mark("<|constrain|>"), style.mark("<|message|>")
    return f'(" ")? ({constrain})? ("json")? {text}' if style.free else f'" " {constrain} "json" {text}'


def _named(name: str, schema: Mapping[str, Any], form: CallForm, style: _Style) -> str:
    line, arguments = style.spaces(), f"{style.spaces('')} {style.json(schema)}"
    separator, identity = style.mark("<｜tool▁sep｜>"), f"({style.mark('[CALL_ID]')} /[a-zA-Z0-9]{{1,64}}/)?"
    if form == "harmony":
        channel = '("commentary" | "analysis")' if style.free else '"commentary"'
        return f'{channel} " to=functions." {name} {_message(style)} {arguments}'
    if form == "deepseek-v3":
        return f'"function" {separator} {name} {line} "```json" {line} {arguments}'
    if form == "deepseek-v31":
        return f"{name} {separator} {arguments}"
    return f"{name} {identity} {style.mark('[ARGS]')} {arguments}"


def _tagged(name: str, schema: Mapping[str, Any], at: int, style: _Style) -> Iterator[str]:
    break_ = style.spaces()
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    parts, texts = [], frozenset(text_names(schema))
    for number, (key, value) in enumerate(properties.items() if isinstance(properties, dict) else ()):
        rule = f"value_{at}_{number}"
        parts.append(rule if key in needed else f"{rule}?")
        choices = constants(value) if isinstance(value, dict) else []
        if choices and key in texts:
            written = " | ".join(json.dumps(str(choice), ensure_ascii=False) for choice in choices)
            said = f'{break_} ({written}) {break_} "</parameter>" {break_}'
        elif key in texts or value in (True, {}):
            said = f"text {break_}"
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


def _enveloped(tools: _Tools, form: CallForm, most: int) -> dict[str, Any]:
    """Returns the JSON schema of a call; for "mistral", of several calls."""
    key = "parameters" if form == "llama3" else "arguments"
    choices = []
    for name, schema in tools.items():
        arguments = {word: value for word, value in schema.items() if word != "$defs"}
        call = {"name": {"const": name}, key: arguments}
        choices.append(
            {"type": "object", "properties": call, "required": [*call], "additionalProperties": False}
        )
    calls: dict[str, Any] = {"anyOf": choices}
    if form == "mistral":
        calls = {"type": "array", "items": calls, "minItems": 1, "maxItems": most}
    definitions = {name: value for one in tools.values() for name, value in one.get("$defs", {}).items()}
    return {**calls, "$defs": definitions} if definitions else calls
