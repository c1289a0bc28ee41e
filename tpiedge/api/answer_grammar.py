"""Reads fields that restrict the answer, like OpenAI's `response_format`."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from tpiedge.api import fields as t
from tpiedge.api.body import is_deeper
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.grammar_schema import GrammarSchema, SchemaTooLarge
from tpiedge.engine.sampling import NO_GRAMMARS, grammars_installed
from tpiedge.local.served_models import ServedModel
from tpiedge.wire.fields import MAX_GRAMMAR
from tpiedge.wire.requests import Grammar, GrammarKind

_MAX_CHOICES: Final = 1024
_MAX_DEPTH: Final = 64
_OBJECT: Final = {"type": "object"}
#: Fields of vLLM, llama.cpp's server, SGLang and TabbyAPI, with the kinds of their values: see `_grammar`.
_GUIDED: Final = {
    "guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar",
}  # fmt: skip
_NAMED: Final = {
    **_GUIDED, "json_schema": "json", "regex": "regex", "ebnf": "grammar", "regex_pattern": "regex",
    "grammar_string": "grammar",
}  # fmt: skip
_PLACES: Final[Sequence[tuple[str, Mapping[str, str]]]] = (
    ("", {"response_format": "form"}),
    ("structured_outputs", {"json_object": "object"}),
    ("", {"grammar": "form", **_NAMED}),
    ("structured_outputs", {kind: kind for kind in ("json", "regex", "choice", "grammar")}),
    ("nvext", _GUIDED),
)

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
    name={"type": "string", "minLength": 1, "maxLength": 64}, schema=_SCHEMA, strict=_STRICT
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
    "grammar": {**_KINDS["grammar"], "type": ["string", "object", "null"]},
    **{key: _KINDS[kind] for key, kind in _NAMED.items()},
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


def read_grammar(fields: BodyFields, model: ServedModel) -> tuple[Grammar | None, str]:
    """Returns (grammar, name of its field), or (None, "") without a grammar. Raises ApiError."""
    found: dict[str, Grammar | None] = {}
    for place, kinds in _PLACES:
        given = fields.nested(place) if place else fields
        found |= {given.name(key): _grammar(given, key, kind, model) for key, kind in kinds.items()}
    return _only(found)


def _only(given: Mapping[str, Grammar | None]) -> tuple[Grammar | None, str]:
    found = [(grammar, param) for param, grammar in given.items() if grammar is not None]
    for (one, first), (other, second) in pairwise(found):
        schemas = one.kind == other.kind == "json"  # the order of their keys does not matter
        if not (one == other or (schemas and json.loads(one.text) == json.loads(other.text))):
            why = f"'{first}' and '{second}' constrain the answer differently: give one"
            raise refused(why, second)
    return found[0] if found else (None, "")


def schema_of_grammar(fields: BodyFields, key: str, schema: object, *, strict: bool = False) -> t.JsonSchema:
    """Returns the part of `schema` that a grammar can enforce. Reports other keywords as ignored or, if `strict`,
    refuses them. Raises ApiError."""
    param = fields.name(key)
    try:
        held = GrammarSchema(check_schema(schema, param))
    except SchemaTooLarge as error:
        raise refused(f"'{param}' {error}", param) from None
    if strict and held.left_out:
        place = f"{param}.{next(iter(held.left_out))}"[:200]
        why = f"'{place}' cannot be enforced, as 'strict' demands: leave out one of them"
        raise refused(why, param)
    for place in held.left_out:
        fields.ignore_within(key, place)
    return held.schema


def schema_grammar(
    fields: BodyFields, key: str, schema: object, model: ServedModel, *, strict: bool = False
) -> Grammar:
    text = json.dumps(schema_of_grammar(fields, key, schema, strict=strict))
    return grammar_of("json", text, fields.name(key), model)


def check_schema(schema: object, param: str) -> dict[str, object]:
    if not isinstance(schema, dict):
        raise refused(f"'{param}' must be a JSON schema: an object", param, "invalid_type")
    if is_deeper(schema, _MAX_DEPTH):
        raise refused(f"'{param}' is nested more than {_MAX_DEPTH} deep", param)
    return schema


def grammar_of(kind: GrammarKind, text: str, param: str, model: ServedModel) -> Grammar:
    if not grammars_installed():
        raise refused(f"'{param}': {NO_GRAMMARS}", param, "unsupported_parameter")
    if model.tokenizer is None:
        raise refused(f"'{param}': the model has no tokenizer", param, "unsupported_parameter")
    if not text.strip():
        raise refused(f"'{param}' is empty", param)
    if len(text) > MAX_GRAMMAR:
        raise refused(f"'{param}' has {len(text)} characters: at most {MAX_GRAMMAR}", param)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise refused(f"'{param}' has half a character, which is not valid Unicode", param)
    return Grammar(kind, text)


def _form(form: BodyFields, model: ServedModel) -> Grammar | None:
    match kind := form.get("type"):
        case "regex":
            kinds = dict.fromkeys(("value", "pattern", "regex"), "regex")
        case "grammar" | "ebnf":
            kinds = dict.fromkeys(("grammar", "value", "ebnf"), "grammar")
        case None | "text":
            return None
        case _:
            kinds = {"schema": "schema", "value": "value", "json_schema": "described"}
    strict = form.get("strict", False)
    found = {form.name(key): _grammar(form, key, kinds[key], model, strict=strict) for key in kinds}
    grammar, _ = _only(found)
    if grammar is not None:
        return grammar
    if kind in ("json_object", "json"):
        return schema_grammar(form, "type", _OBJECT, model)
    raise form.missing("json_schema" if kind == "json_schema" else next(iter(kinds)))


def _grammar(
    fields: BodyFields, key: str, kind: str, model: ServedModel, *, strict: bool = False
) -> Grammar | None:
    value = fields.get(key)
    match kind, value:
        case _, None:
            return None
        case "form", dict():  # TGI's clients give a `grammar` so, too
            return _form(fields.inner(value, key, _FORM), model)
        case "object", _:
            return schema_grammar(fields, key, _OBJECT, model) if value else None
        case "json" | "schema" | "value" | "described", _:
            schema = fields.parsed(key)  # a schema may come as a text
            holds = isinstance(schema, dict) and isinstance(schema.get("schema"), dict)
            if kind == "described" or (kind == "value" and holds):
                fields, key = fields.inner(schema, key, _DESCRIBED), "schema"
                strict, schema = fields.get("strict", False), fields.parsed(key)
            if schema is None and kind in ("schema", "value"):  # it was the text "null"
                return None
            schema = _OBJECT if schema is None and kind == "described" else schema
            return schema_grammar(fields, key, schema, model, strict=strict)
        case "choice", _:
            if not value:
                raise fields.wrong(key, f"must be an array of 1 to {_MAX_CHOICES} strings", "invalid_type")
            if not all(isinstance(text, str) and text for text in value):
                raise fields.wrong(key, "has an entry that is not a string of at least one character")
            value = "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
    if not isinstance(value, str):
        raise fields.wrong_type(key, "a string", value)
    return grammar_of("regex" if kind == "regex" else "lark", value, fields.name(key), model)
