"""Makes of a client's JSON schema the one that a grammar is made of. Pure.

An object has the properties that its schema declares and no others, unless the schema says something of others itself,
or is put together of several parts that hold for the same object: `allOf`, or a choice or a reference beside
properties. What a grammar cannot hold is left out and named; words without a meaning for what may be written
(annotations, formats that are not known) are only left out. That one part alone of `oneOf` holds is not checked: nearly
always it follows from their types and tags.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

_MAX_PARTS: Final = 20_000
#: Longer ones of the characters of places and patterns would be work that the number of parts does not show.
_MAX_PLACE: Final = 256
_CHARACTERS_OF_PART: Final = 100
_TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
_FORMATS: Final = (
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid",
)  # fmt: skip
#: Whose values are taken as they are.
_PLAIN: Final = (
    "required", "minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength", "multipleOf",
)  # fmt: skip
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_UNHELD: Final = (
    "uniqueItems", "contains", "not", "if", "dependentRequired", "dependentSchemas", "dependencies",
)  # fmt: skip
#: Up to here doubles are exact, and the largest of them that is a signed integer of 64 bits.
_EXACT, _LARGEST = 1 << 53, (1 << 63) - (1 << 10)
_CHOICES: Final = ("anyOf", "oneOf")
_OWN: Final = ("properties", "patternProperties")
#: Beside one of these a part of a schema holds for the same object as another one.
_JOINED: Final = ("allOf", *_CHOICES, "$ref", "if", "dependentSchemas")
_ESCAPE: Final = r"\\(?:[pP]\{[^}]{0,64}\}|(?!u[dD][89a-fA-F])[aftnrvxuUdDsSwWAzpP]|(?![\w<>])[ -~])"
_CLASS: Final = rf"\[\^?+\]?+(?:{_ESCAPE}|\[:\^?\w+:\]|[^\\\[\]])*+\]"
#: A pattern of Rust's syntax, in which nothing looks around: anchors stand only where an alternative begins or ends.
_HELD: Final = re.compile(
    rf"\^*+(?:{_ESCAPE}|{_CLASS}|\((?:\?(?:P?<[A-Za-z_]|[isUuxR-]*+[:)])|(?!\?))\^*+|\|\^*+|\$(?=[)|$]|\Z)"
    r"|\{[0-9]+(?:,[0-9]*)?\}|[^\\\[{^$(|])*+",
    re.DOTALL | re.ASCII,
)


class SchemaTooLarge(ValueError):
    """The schema has more parts than a grammar is made of."""


@dataclass(frozen=True, slots=True)
class GrammarSchema:
    """A schema without references to anything but its `$defs`. `left_out`: the places of the words of the client's
    schema that it does not hold."""

    schema: dict[str, Any]
    left_out: tuple[str, ...]


def grammar_schema(schema: dict[str, Any], prefix: str = "") -> GrammarSchema:
    """`prefix` begins the names of all definitions. Raises SchemaTooLarge."""
    return _Rewriting(schema, prefix).whole()


def is_held(pattern: str) -> bool:
    """Whether a grammar can hold the pattern. Patterns are written for JavaScript or Python; the library of grammars
    reads Rust's syntax, without what looks around."""
    return _HELD.fullmatch(pattern) is not None


class _Rewriting:
    """Rewrites a schema. Parts that are `opened` hold for the same object as others, and may have other properties."""

    def __init__(self, root: dict[str, Any], prefix: str) -> None:
        self._root = root
        self._prefix = prefix
        self._left_out: dict[str, None] = {}
        self._names: dict[tuple[int, bool], str] = {}
        self._definitions: dict[str, Any] = {}
        self._waiting: list[tuple[str, object, str, bool]] = []
        self._parts = 0

    def whole(self) -> GrammarSchema:
        made = self._schema(self._root, "")
        found = made if isinstance(made, dict) else {} if made is True else {"allOf": [False]}
        while self._waiting:
            name, part, path, opened = self._waiting.pop()
            self._definitions[name] = self._schema(part, path, opened)
        more = {"$defs": self._definitions} if self._definitions else {}
        return GrammarSchema(found | more, tuple(self._left_out))

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > _MAX_PARTS:
            raise SchemaTooLarge(f"makes more than {_MAX_PARTS} parts: give a smaller schema")

    def _leave_out(self, path: str, word: str) -> None:
        self._left_out[_inner(path, word)] = None

    def _schema(self, schema: object, path: str, opened: bool = False) -> Any:
        self._count(1)
        if not isinstance(schema, dict):
            return [] if isinstance(schema, list) else schema  # which is no schema, and refused as such
        if "not" in schema and schema["not"] in ({}, True):
            return False
        found: dict[str, Any] = {}
        self._value(schema, path, found)
        self._array(schema, path, found)
        several = isinstance(schema.get("allOf"), list) and len(schema["allOf"]) != 1
        joined = any(word in schema for word in _OWN) and any(word in schema for word in _JOINED)
        opened = opened or several or joined
        self._properties(schema, path, found, opened)
        self._refer(schema, path, found, opened)
        self._choices(schema, path, found, opened)
        for word in _UNHELD:
            if schema.get(word) not in (None, False, [], {}):
                self._leave_out(path, word)
        for word, held in (("unevaluatedItems", "items"), ("unevaluatedProperties", "additionalProperties")):
            if schema.get(word) not in (None, True) and held not in found:
                self._leave_out(path, word)
        return found

    def _value(self, schema: Mapping[str, Any], path: str, found: dict[str, Any]) -> None:
        """The words that hold for a value of any type, or of one that has no parts."""
        kinds = _kinds(schema)
        if schema.get("type") is not None:
            if kinds and all(kind in _TYPES for kind in kinds):
                found["type"] = kinds if isinstance(schema["type"], list) else kinds[0]
            else:
                self._leave_out(path, "type")
        # Clients in Go write null for no list; as a constant it is a value.
        found |= {key: schema[key] for key in _PLAIN if schema.get(key) is not None}
        for key in ("const", "enum"):
            if key not in schema or (key == "enum" and schema[key] is None):
                continue
            if _is_exact(schema[key]):
                found[key] = schema[key]
            else:
                self._leave_out(path, key)
        whole = kinds == ["integer"]
        found |= {key: _within(schema[key], key, whole) for key in _BOUNDS if schema.get(key) is not None}
        if schema.get("format") in _FORMATS:
            found["format"] = schema["format"]
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            self._count(len(pattern) // _CHARACTERS_OF_PART)
            if is_held(pattern):
                found["pattern"] = pattern
            else:
                self._leave_out(path, "pattern")

    def _array(self, schema: Mapping[str, Any], path: str, found: dict[str, Any]) -> None:
        first, rest, rest_word = schema.get("prefixItems"), schema.get("items"), "items"
        if isinstance(rest, list):  # as until 2020
            first, rest, rest_word = rest, schema.get("additionalItems"), "additionalItems"
        if isinstance(first, list):
            found["prefixItems"] = self._several(first, path, "prefixItems")
            if rest is None and schema.get("unevaluatedItems") is False:
                rest = False
        if rest is not None:
            found["items"] = self._schema(rest, _inner(path, rest_word))

    def _several(self, parts: list[Any], path: str, word: str, opened: bool = False) -> list[Any]:
        return [self._schema(one, _inner(path, f"{word}[{at}]"), opened) for at, one in enumerate(parts)]

    def _properties(self, schema: Mapping[str, Any], path: str, found: dict[str, Any], opened: bool) -> None:
        unheld = False
        for word in _OWN:
            given = schema.get(word)
            if isinstance(given, dict):
                held = [name for name in given if word == "properties" or is_held(name)]
                found[word] = {name: self._schema(given[name], _inner(path, word, name)) for name in held}
                if len(held) < len(given):
                    unheld = True
                    self._leave_out(path, word)
            elif given is not None:
                found[word] = self._schema(given, path)
        others = schema.get("additionalProperties")
        if others is not None:
            others = True if unheld else self._schema(others, _inner(path, "additionalProperties"))
            found["additionalProperties"] = others
        names = schema.get("propertyNames")
        said = set(names) - {"type", "title", "description"} if isinstance(names, dict) else names
        if said not in (None, True, set()):
            self._leave_out(path, "propertyNames")
        kinds = _kinds(schema)
        may_be_object = "object" in kinds or not all(kind in _TYPES for kind in kinds)
        declared = may_be_object and any(isinstance(schema.get(word), dict) for word in _OWN)
        said_of_others = any(word in schema for word in ("additionalProperties", "unevaluatedProperties"))
        shut = schema.get("unevaluatedProperties") is False and not any(word in schema for word in _JOINED)
        if not (shut or (declared and not (opened or unheld or said_of_others))):
            return
        required, known = schema.get("required"), found.get("properties", {})
        needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        self._count(len(needed))
        if isinstance(known, dict) and (needed or "properties" in found):
            found["properties"] = {**known, **{name: True for name in needed if name not in known}}
        found["additionalProperties"] = False

    def _refer(self, schema: dict[str, Any], path: str, found: dict[str, Any], opened: bool) -> None:
        """A reference becomes one to `$defs` of the schema itself, so that it may become a part of another one."""
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return
        target = _target(reference, self._root)
        if not isinstance(target, dict | bool):
            self._leave_out(path, "$ref")
            return
        name = self._names.get((id(target), opened))
        if name is None:
            last = reference.rpartition("/")[2]
            last = "".join(c for c in last if c.isascii() and (c.isalnum() or c in "_-."))
            name = f"{self._prefix}{last[:64] or 'part'}"
            name = f"{name}-{len(self._definitions)}" if name in self._definitions else name
            self._names[id(target), opened], self._definitions[name] = name, None
            place = ".".join(filter(None, reference.partition("#")[2].split("/")))
            self._waiting.append((name, target, place, opened))
        found["$ref"] = f"#/$defs/{name}"

    def _choices(self, schema: dict[str, Any], path: str, found: dict[str, Any], opened: bool) -> None:
        """The parts of `allOf`, `anyOf` and `oneOf`."""
        for word in ("allOf", *_CHOICES):
            parts = schema.get(word)
            if parts is None:
                continue
            if not isinstance(parts, list):
                found[word] = {}  # no list either, so refused, and without references
                continue
            made = self._several(parts, path, word, opened)
            if word == "oneOf" and "anyOf" in found:
                found["allOf"] = [*found.get("allOf", ()), {"anyOf": made}]
            else:
                found["allOf" if word == "allOf" else "anyOf"] = made
        # OpenAPI's discriminator is a property: pydantic gives it a default, so that it is not required.
        given = schema.get("discriminator")
        tag = given.get("propertyName") if isinstance(given, dict) else None
        if isinstance(tag, str) and schema.get("required") in (None, []):
            found["required"] = [tag]


def _is_exact(value: object) -> bool:
    """Whether the library of grammars, which counts in doubles, reads all whole numbers of a constant as they are."""
    match value:
        case dict():
            return all(map(_is_exact, value.values()))
        case list():
            return all(map(_is_exact, value))
        case int():
            return abs(value) <= _EXACT
    return True


def _within(bound: object, word: str, whole: bool) -> object:
    """Returns the bound, or where the library of grammars would round it, the nearest one inside that it reads as it
    is. `whole`: only integers are meant, and those it counts with 64 bits."""
    if not isinstance(bound, int) or not _EXACT < abs(bound) < 1 << 1023:
        return bound
    upwards = word in ("minimum", "exclusiveMinimum")
    if whole:
        bound = max(-_LARGEST, bound) if upwards else min(_LARGEST, bound)
    near = float(bound)
    if near < bound if upwards else near > bound:
        near = math.nextafter(near, math.inf if upwards else -math.inf)
    return int(near)


def _target(reference: str, root: object) -> object:
    """The part of the schema that the reference, a JSON pointer, names; None where there is none."""
    address, _, pointer = unquote(reference).partition("#")
    if address or (pointer and not pointer.startswith("/")):
        return None
    found = root
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and key.isascii() and len(key) < 9:
            found = found[int(key)] if int(key) < len(found) else None
        else:
            return None
    return found


def _inner(path: str, *keys: str) -> str:
    """The place of a part. Of a long path, the end."""
    *outer, last = (path, *keys) if path else keys
    return ".".join((*filter(None, (".".join(outer)[-_MAX_PLACE:],)), last))


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    """The types, also where they are written in capitals, as clients of Gemini's do; "" for what is none."""
    given = schema.get("type")
    kinds = given if isinstance(given, list) else [given]
    return [kind.lower() if isinstance(kind, str) else "" for kind in kinds]
