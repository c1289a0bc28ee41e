"""The words of JSON Schema, and what a schema says with them by itself. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tpiedge.api.schema_patterns import is_held

TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
FORMATS: Final = (
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid",
)  # fmt: skip
#: Whose values are taken as they are.
PLAIN: Final = (
    "const", "enum", "required", "minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
)  # fmt: skip
REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
CHOICES: Final = ("anyOf", "oneOf")
CONDITIONS: Final = ("if", "then", "else")
#: What holds for the same object, so that what stands beside a reference is part of a whole.
OF_OBJECTS: Final = (
    "properties", "patternProperties", "required", "additionalProperties", "unevaluatedProperties", "allOf", *CHOICES,
)  # fmt: skip
#: What a schema says of values beside a reference.
SAYING: Final = (
    *PLAIN, *OF_OBJECTS, *CONDITIONS, "type", "format", "pattern", "items", "prefixItems", "propertyNames", "not",
)  # fmt: skip


def unheld_words(schema: Mapping[str, Any]) -> Iterator[str]:
    """The words of the schema that no grammar can hold, and that say something."""
    if schema.get("uniqueItems") is True and schema.get("maxItems") not in (0, 1):
        yield "uniqueItems"
    if "contains" in schema and schema.get("minContains") != 0:
        yield "contains"
    if schema.get("not") not in (None, False):
        yield "not"
    if "if" in schema and ("then" in schema or "else" in schema):
        yield "if"
    for word in ("dependentRequired", "dependentSchemas", "dependencies"):
        if schema.get(word):
            yield word
    closes_tuple = schema.get("unevaluatedItems") is False and "prefixItems" in schema
    if schema.get("unevaluatedItems") not in (None, True) and "items" not in schema and not closes_tuple:
        yield "unevaluatedItems"
    if isinstance(schema.get("unevaluatedProperties"), dict):
        yield "unevaluatedProperties"


def has_unheld_patterns(schema: Mapping[str, Any]) -> bool:
    patterns = schema.get("patternProperties")
    return isinstance(patterns, dict) and not all(is_held(pattern) for pattern in patterns)


def reference_of(schema: object) -> str | None:
    """What the schema refers to, if anything."""
    if not isinstance(schema, dict):
        return None
    return next((schema[word] for word in REFERENCES if isinstance(schema.get(word), str)), None)


def place_of(reference: str) -> str:
    """The place that the reference names, as the name of a field has it."""
    return ".".join(part for part in reference.partition("#")[2].split("/") if part)


def may_be_object(schema: Mapping[str, Any]) -> bool:
    """Also where no type is known, or one is written in capitals, as clients of Gemini's do."""
    given = schema.get("type")
    kinds = [one.lower() for one in (given if isinstance(given, list) else [given]) if isinstance(one, str)]
    return "object" in kinds or not all(kind in TYPES for kind in kinds) or not kinds


def restricts_names(names: Mapping[str, Any]) -> bool:
    """Whether a schema of names says more than that they are texts."""
    words = (word for word in (*SAYING, *REFERENCES) if word not in ("type", "format"))
    return any(key in names for key in words) or names.get("format") in FORMATS


def listed_names(names: Mapping[str, Any]) -> list[str] | None:
    """The names that the schema lists, if it does: also of keys that are integers, which JSON writes as texts."""
    found = names.get("enum", [names["const"]] if "const" in names else None)
    if not isinstance(found, list) or not found or not all(type(name) in (str, int) for name in found):
        return None
    return [str(name) for name in found]


def is_only_pattern(names: Mapping[str, Any]) -> bool:
    pattern = names.get("pattern")
    others = {key: value for key, value in names.items() if key != "pattern"}
    return isinstance(pattern, str) and is_held(pattern) and not restricts_names(others)
