"""Reads the fields that restrict the answer: OpenAI's `response_format`, and those of other servers."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from tpiedge.api import fields as t
from tpiedge.api.body import is_deeper
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.grammar_schema import SchemaTooLarge, grammar_schema
from tpiedge.api.service import Service
from tpiedge.engine.sampling import NO_GRAMMARS, grammars_installed
from tpiedge.wire.fields import MAX_GRAMMAR
from tpiedge.wire.requests import Grammar, GrammarKind

_MAX_CHOICES: Final = 1024
_MAX_DEPTH: Final = 64
_OBJECT: Final = {"type": "object"}
#: Names of vLLM, llama.cpp's server, SGLang and TabbyAPI, and the kind of grammar of each.
_GUIDED: Final = {
    "guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar",
}  # fmt: skip
_NAMED: Final = {
    "grammar": "grammar", **_GUIDED, "json_schema": "json", "regex": "regex", "ebnf": "grammar",
    "regex_pattern": "regex", "grammar_string": "grammar",
}  # fmt: skip
_STRUCTURED: Final = {kind: kind for kind in ("json", "regex", "choice", "grammar")}

_SCHEMA: Final[t.JsonSchema] = {
    "type": ["object", "string", "null"],
    "description": "A JSON schema that the answer has. Objects have no properties that it does not declare.",
}
_STRICT: Final = t.flag("Whether a schema of which a part cannot be held is refused.")
_KINDS: Final[dict[str, t.JsonSchema]] = {
    "json": _SCHEMA,
    "regex": t.text("A regular expression that the answer has."),
    "grammar": t.text("Lark or llama.cpp's GBNF, of what the answer may be."),
    "choice": t.array({"type": "string"}, "One of these texts is the answer.", _MAX_CHOICES),
}
_DESCRIBED: Final = t.body(
    name={"type": "string", "minLength": 1, "maxLength": 64},
    schema=_SCHEMA,
    strict=_STRICT,
    description=t.VAIN,
)
_FORM: Final = t.body(
    "type",
    type=t.word("text", "json_object", "json_schema", "json", "regex", "grammar", "ebnf"),
    json_schema=t.optional(_DESCRIBED | {"required": ["name"]}),
    schema={**_SCHEMA, "description": "A schema, as of llama.cpp's server."},
    value={"description": "A schema or a regular expression, as of TGI."},
    pattern=t.text("A regular expression."),
    regex=t.text("The same."),
    grammar=t.text(),
    ebnf=t.text("The same."),
    strict=_STRICT,
)
_UNKNOWN: Final = {"structural_tag": t.unsupported()}
FORM: Final[dict[str, t.JsonSchema]] = {
    "response_format": t.optional(_FORM),
    **{key: _KINDS[kind] for key, kind in _NAMED.items()},
    "grammar": {**_KINDS["grammar"], "type": ["string", "object", "null"]},
    "structured_outputs": t.optional(
        t.body(**_KINDS, json_object=t.flag("Whether the answer is any JSON object."), **_UNKNOWN),
        "One of these, as of vLLM.",
    ),
    "nvext": t.optional(
        t.body(**{key: _KINDS[kind] for key, kind in _GUIDED.items()}), "One of these, as of NVIDIA."
    ),
    **_UNKNOWN,
}
"""The fields of any request that restrict the answer. Several may be given if they say the same."""
CONSTRAINTS: Final = tuple(key for key in FORM if key not in _UNKNOWN)


def read_grammar(fields: BodyFields, service: Service) -> tuple[Grammar | None, str]:
    """Returns the grammar of the answer, if any, and the field that names it. Raises ApiError."""
    found: dict[str, Grammar] = {}
    if (grammar := _form(fields.nested("response_format"), service)) is not None:
        found["response_format"] = grammar
    structured, extended = fields.nested("structured_outputs"), fields.nested("nvext")
    if structured.get("json_object", False):
        found[structured.name("json_object")] = schema_grammar(structured, "json_object", _OBJECT, service)
    for given, kinds in ((fields, _NAMED), (structured, _STRUCTURED), (extended, _GUIDED)):
        for key, kind in kinds.items():
            value = given.get(key)
            if given is fields and key == "grammar" and isinstance(value, dict):  # as TGI's clients say it
                inner = fields.inner(value, key, _FORM)
                found |= {key: grammar} if (grammar := _form(inner, service)) is not None else {}
            elif value is not None:
                found[given.name(key)] = _structured(given, key, kind, service)
    return _only(found)


def _only(found: Mapping[str, Grammar]) -> tuple[Grammar | None, str]:
    for (first, one), (second, other) in pairwise(found.items()):
        schemas = one.kind == other.kind == "json"  # in whatever order they are written
        if not (one == other or (schemas and json.loads(one.text) == json.loads(other.text))):
            why = f"'{first}' and '{second}' both say what the answer must be, and not the same: give one"
            raise refused(why, second)
    return next(((grammar, param) for param, grammar in found.items()), (None, ""))


def schema_of_grammar(
    fields: BodyFields, key: str, schema: object, *, strict: bool = False
) -> dict[str, object]:
    """Returns what a grammar holds of the field's JSON schema. The rest is reported as ignored, or refused if `strict`.
    Raises ApiError."""
    param = fields.name(key)
    try:
        held = grammar_schema(check_schema(schema, param))
    except SchemaTooLarge as error:
        raise refused(f"'{param}' {error}", param) from None
    if strict and held.left_out:
        place = f"{param}.{held.left_out[0]}"[:200]
        why = f"'{place}' cannot be kept to, as 'strict' wants it: leave out the one or the other"
        raise refused(why, param)
    for place in held.left_out:
        fields.leave_out(key, place)
    return held.schema


def schema_grammar(
    fields: BodyFields, key: str, schema: object, service: Service, *, strict: bool = False
) -> Grammar:
    text = json.dumps(schema_of_grammar(fields, key, schema, strict=strict))
    return grammar_of("json", text, fields.name(key), service)


def check_schema(schema: object, param: str) -> dict[str, object]:
    if not isinstance(schema, dict):
        raise refused(f"'{param}' must be a JSON schema: an object", param, "invalid_type")
    if is_deeper(schema, _MAX_DEPTH):
        raise refused(f"'{param}' is nested more than {_MAX_DEPTH} deep", param)
    return schema


def grammar_of(kind: GrammarKind, text: str, param: str, service: Service) -> Grammar:
    if not grammars_installed():
        raise refused(f"'{param}': {NO_GRAMMARS}", param, "unsupported_parameter")
    if service.tokenizer is None:
        raise refused(f"'{param}': the model has no tokenizer", param, "unsupported_parameter")
    if not text.strip():
        raise refused(f"'{param}' is empty", param)
    if len(text) > MAX_GRAMMAR:
        raise refused(f"'{param}' has {len(text)} characters: at most {MAX_GRAMMAR}", param)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise refused(f"'{param}' has half a character, which is no Unicode", param)
    return Grammar(kind, text)


def _form(form: BodyFields, service: Service) -> Grammar | None:
    found: dict[str, Grammar] = {}
    match form.get("type"):
        case "json_object" | "json":
            found = _schemas(form, service) or {"type": schema_grammar(form, "type", _OBJECT, service)}
        case "json_schema":
            found = _schemas(form, service)
            if not found:
                raise form.missing("json_schema")
        case "regex":
            found = _given(form, ("value", "pattern", "regex"), "regex", service)
        case "grammar" | "ebnf":
            found = _given(form, ("grammar", "value", "ebnf"), "grammar", service)
    return _only({form.name(key): grammar for key, grammar in found.items()})[0]


def _schemas(form: BodyFields, service: Service) -> dict[str, Grammar]:
    found: dict[str, Grammar] = {}
    for key in ("schema", "value"):
        value = form.parsed(key)
        if isinstance(value, dict) and key == "value" and isinstance(value.get("schema"), dict):
            found[key] = _described(form.inner(value, key, _DESCRIBED), service)
        elif value is not None:
            found[key] = schema_grammar(form, key, value, service, strict=form.get("strict", False))
    if form.get("json_schema") is not None:
        found["json_schema"] = _described(form.nested("json_schema"), service)
    return found


def _described(described: BodyFields, service: Service) -> Grammar:
    strict, schema = described.get("strict", False), described.parsed("schema")
    return schema_grammar(described, "schema", _OBJECT if schema is None else schema, service, strict=strict)


def _given(form: BodyFields, keys: Sequence[str], kind: str, service: Service) -> dict[str, Grammar]:
    found = {key: _structured(form, key, kind, service) for key in keys if form.get(key) is not None}
    if not found:
        raise form.missing(keys[0])
    return found


def _structured(fields: BodyFields, key: str, kind: str, service: Service) -> Grammar:
    value, param = fields.get(key), fields.name(key)
    if kind == "json":  # which may come as a text
        return schema_grammar(fields, key, fields.parsed(key), service)
    if kind == "choice":
        if not value:
            raise refused(f"'{param}' must be an array of 1 to {_MAX_CHOICES} strings", param, "invalid_type")
        if not all(isinstance(text, str) and text for text in value):
            raise refused(f"'{param}' holds what is not a string of at least one character", param)
        value = "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
    if not isinstance(value, str):
        raise fields.wrong_type(key, "a string", value)
    return grammar_of("regex" if kind == "regex" else "lark", value, param, service)
