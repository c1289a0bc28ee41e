"""Rewrites a client's JSON schema into one that a grammar can hold. Pure.

An object has only declared properties, unless its schema mentions others or has several parts for one object (`allOf`,
or a choice or reference beside properties). Words that a grammar cannot hold are left out and named; annotations and
unknown formats are left out. `oneOf` is read as `anyOf`: types and tags nearly always exclude each other.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

_MAX_PARTS: Final = 20_000
#: Long places and patterns are work that the number of parts does not show.
_MAX_PLACE: Final = 256
_CHARACTERS_OF_PART: Final = 100
_TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
_FORMATS: Final = (
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid",
)  # fmt: skip
#: Their values are copied.
_PLAIN: Final = (
    "required", "minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength", "multipleOf",
)  # fmt: skip
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_UNHELD: Final = (
    "uniqueItems", "contains", "not", "if", "dependentRequired", "dependentSchemas", "dependencies",
)  # fmt: skip
#: The end of exact integers in doubles, and the largest double that fits a signed integer of 64 bits.
_EXACT, _LARGEST = 1 << 53, (1 << 63) - (1 << 10)
_CHOICES: Final = ("anyOf", "oneOf")
_OWN: Final = ("properties", "patternProperties")
#: Beside these words several parts hold for one object.
_JOINED: Final = ("allOf", *_CHOICES, "$ref", "if", "dependentSchemas")
_ESCAPE: Final = r"\\(?:[pP]\{[^}]{0,64}\}|(?!u[dD][89a-fA-F])[aftnrvxuUdDsSwWAzpP]|(?![\w<>])[ -~])"
_CLASS: Final = rf"\[\^?+\]?+(?:{_ESCAPE}|\[:\^?\w+:\]|[^\\\[\]])*+\]"
#: A pattern in Rust's syntax without look-around; anchors stand only at the ends of an alternative.
_HELD: Final = re.compile(
    rf"\^*+(?:{_ESCAPE}|{_CLASS}|\((?:\?(?:P?<[A-Za-z_]|[isUuxR-]*+[:)])|(?!\?))\^*+|\|\^*+|\$(?=[)|$]|\Z)"
    r"|\{[0-9]+(?:,[0-9]*)?\}|[^\\\[{^$(|])*+",
    re.DOTALL | re.ASCII,
)


class SchemaTooLarge(ValueError): ...


def is_held(pattern: str) -> bool:
    return _HELD.fullmatch(pattern) is not None


class GrammarSchema:
    """A client's schema, rewritten to `schema`, which refers only to its `$defs`. `left_out`: places of the client's
    words that it lacks. A part that is `opened` shares its object with others, so it allows more properties."""

    def __init__(self, root: dict[str, Any], prefix: str = "") -> None:
        """`prefix` begins the names of all definitions. Raises SchemaTooLarge."""
        self._root = root
        self._prefix = prefix
        self.left_out: dict[str, None] = {}
        self._names: dict[tuple[int, bool], str] = {}
        self._definitions: dict[str, Any] = {}
        self._waiting: list[tuple[str, object, str, bool]] = []
        self._parts = 0
        made = self._schema(root, "")
        found: dict[str, Any] = made if isinstance(made, dict) else {} if made is True else {"allOf": [False]}
        while self._waiting:
            name, part, path, opened = self._waiting.pop()
            self._definitions[name] = self._schema(part, path, opened)
        self.schema = found | ({"$defs": self._definitions} if self._definitions else {})

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > _MAX_PARTS:
            raise SchemaTooLarge(f"makes more than {_MAX_PARTS} parts: give a smaller schema")

    def _leave_out(self, path: str, word: str) -> None:
        self.left_out[_inner(path, word)] = None

    def _keep(self, found: dict[str, Any], path: str, word: str, value: object, held: bool) -> None:
        if held:
            found[word] = value
        else:
            self._leave_out(path, word)

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
        kinds = _kinds(schema)
        if schema.get("type") is not None:
            held = bool(kinds) and all(kind in _TYPES for kind in kinds)
            self._keep(found, path, "type", kinds if isinstance(schema["type"], list) else kinds[0], held)
        # Clients in Go write null for no list; in `const` null is a value.
        found |= {key: schema[key] for key in _PLAIN if schema.get(key) is not None}
        for key in ("const", "enum"):
            if key in schema and (key == "const" or schema[key] is not None):
                self._keep(found, path, key, schema[key], _is_exact(schema[key]))
        whole = kinds == ["integer"]
        found |= {key: _within(schema[key], key, whole) for key in _BOUNDS if schema.get(key) is not None}
        if schema.get("format") in _FORMATS:
            found["format"] = schema["format"]
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            self._count(len(pattern) // _CHARACTERS_OF_PART)
            self._keep(found, path, "pattern", pattern, is_held(pattern))

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
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return
        target = _target(reference, self._root)
        if not isinstance(target, dict | bool):
            self._leave_out(path, "$ref")
            return
        name = self._names.get((id(target), opened))
        if name is None:
            last = re.sub(r"[^\w.-]", "", reference.rpartition("/")[2], flags=re.ASCII)
            name = f"{self._prefix}{last[:64] or 'part'}"
            name = f"{name}-{len(self._definitions)}" if name in self._definitions else name
            self._names[id(target), opened], self._definitions[name] = name, None
            place = ".".join(filter(None, reference.partition("#")[2].split("/")))
            self._waiting.append((name, target, place, opened))
        found["$ref"] = f"#/$defs/{name}"

    def _choices(self, schema: dict[str, Any], path: str, found: dict[str, Any], opened: bool) -> None:
        for word in ("allOf", *_CHOICES):
            parts = schema.get(word)
            if parts is None:
                continue
            if not isinstance(parts, list):
                found[word] = {}  # refused as well, but without references
                continue
            made = self._several(parts, path, word, opened)
            if word == "oneOf" and "anyOf" in found:
                found["allOf"] = [*found.get("allOf", ()), {"anyOf": made}]
            else:
                found["allOf" if word == "allOf" else "anyOf"] = made
        # Pydantic gives OpenAPI's discriminator a default, so that it is not required.
        given = schema.get("discriminator")
        tag = given.get("propertyName") if isinstance(given, dict) else None
        if isinstance(tag, str) and schema.get("required") in (None, []):
            found["required"] = [tag]


def _is_exact(value: object) -> bool:
    """Whether doubles, in which llguidance counts, hold all integers of a constant."""
    if isinstance(value, dict | list):
        return all(map(_is_exact, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or abs(value) <= _EXACT


def _within(bound: object, word: str, whole: bool) -> object:
    """Moves a bound inside, to a double as llguidance reads it; a bound of `whole` numbers, also to 64 bits."""
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
    """Returns the place of a part, with the end of a long path."""
    *outer, last = (path, *keys) if path else keys
    return ".".join((*filter(None, (".".join(outer)[-_MAX_PLACE:],)), last))


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    """Returns the types, which Gemini's clients write in capitals; "" for anything else."""
    given = schema.get("type")
    kinds = given if isinstance(given, list) else [given]
    return [kind.lower() if isinstance(kind, str) else "" for kind in kinds]
