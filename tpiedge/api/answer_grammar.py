"""The fields that say which form an answer must have: OpenAI's `response_format`, `grammar`, and vLLM's names."""

import json

from tpiedge.api.bounded_json import is_deeper
from tpiedge.api.errors import refused
from tpiedge.api.fields import BodyFields
from tpiedge.api.service import Service
from tpiedge.engine.sampling import NO_GRAMMARS, grammars_installed
from tpiedge.wire.limits import MAX_GRAMMAR
from tpiedge.wire.requests import Grammar, GrammarKind

__all__ = ["check_schema", "grammar_of", "read_grammar", "schema_grammar"]

_MAX_CHOICES = 1024
_MAX_DEPTH = 64
_MAX_NAME = 64
_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_STRUCTURED = ("json", "regex", "choice", "grammar")
_OBJECT = {"type": "object"}


def read_grammar(fields: BodyFields, service: Service) -> tuple[Grammar | None, str]:
    """What the answer must keep to, if anything, and the field that says so: at most one may. Raises ApiError."""
    found: dict[str, Grammar] = {}
    form = fields.nested("response_format")
    if form is not None and (grammar := _response_format(form, service)) is not None:
        found["response_format"] = grammar
    text = fields.text("grammar")
    if text is not None:
        found["grammar"] = grammar_of("lark", text, "grammar", service)
    for key, kind in _GUIDED.items():
        if fields.raw(key) is not None:
            found[key] = _structured(fields, key, kind, service)
    structured = fields.nested("structured_outputs")
    if structured is not None:
        given = [kind for kind in _STRUCTURED if structured.raw(kind) is not None]
        found |= {structured.name(kind): _structured(structured, kind, kind, service) for kind in given}
        structured.overlook()
    if len(found) > 1:
        first, second, *_ = found
        raise refused(f"'{first}' and '{second}' both say what the answer must be: give one", second)
    return next(((grammar, param) for param, grammar in found.items()), (None, ""))


def schema_grammar(schema: object, param: str, service: Service) -> Grammar:
    """Of a JSON schema, which came as the field `param`. Raises ApiError."""
    return grammar_of("json", json.dumps(check_schema(schema, param)), param, service)


def check_schema(schema: object, param: str) -> dict[str, object]:
    """The schema, if it can be one. Raises ApiError."""
    if not isinstance(schema, dict):
        raise refused(f"'{param}' must be a JSON schema: an object", param, "invalid_type")
    if is_deeper(schema, _MAX_DEPTH):
        raise refused(f"'{param}' is nested more than {_MAX_DEPTH} deep", param)
    return schema


def grammar_of(kind: GrammarKind, text: str, param: str, service: Service) -> Grammar:
    """Raises ApiError where there can be none."""
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


def _response_format(form: BodyFields, service: Service) -> Grammar | None:
    kind = form.text("type")
    described = form.nested("json_schema")
    param = form.name("json_schema")
    form.overlook()
    match kind:
        case "text":
            return None
        case "json_object":
            return schema_grammar(_OBJECT, form.name("type"), service)
        case "json_schema" if described is not None:
            name = described.text("name")
            if name is None or len(name) > _MAX_NAME:
                where = described.name("name")
                raise refused(f"'{where}' must have 1 to {_MAX_NAME} characters", where)
            described.flag("strict")  # always
            schema = described.raw("schema")
            described.ignore(("description",))
            described.overlook()
            return schema_grammar(_OBJECT if schema is None else schema, described.name("schema"), service)
        case "json_schema":
            raise refused(f"'{param}' is missing", param, "missing_required_parameter")
    where = form.name("type")
    raise refused(f"'{where}' must be 'text', 'json_object' or 'json_schema'", where, "unsupported_value")


def _structured(fields: BodyFields, key: str, kind: str, service: Service) -> Grammar:
    """As vLLM's clients say it."""
    value, param = fields.raw(key), fields.name(key)
    if kind == "json":  # which may come as a text
        return schema_grammar(fields.parsed(key), param, service)
    if kind == "choice":
        return grammar_of("lark", _alternatives(value, param), param, service)
    text = fields.text(key) or ""
    return grammar_of("regex" if kind == "regex" else "lark", text, param, service)


def _alternatives(value: object, param: str) -> str:
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_CHOICES:
        raise refused(f"'{param}' must be an array of 1 to {_MAX_CHOICES} strings", param, "invalid_type")
    texts = [text for text in value if isinstance(text, str) and text]
    if len(texts) < len(value):
        raise refused(f"'{param}' holds what is not a string of at least one character", param)
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
