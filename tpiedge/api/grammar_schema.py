"""Makes of a client's JSON schema the one that a grammar is made of. Pure.

Laws:
1. An object has the properties that its schema declares and no others, unless the schema says something of others
   itself. Declared are those of all parts that hold for the same object: the parts of `allOf`, and what `$ref` names
   beside other words. Each part of `anyOf` and `oneOf` is an object of its own, with what is declared around it.
2. All references are to `$defs` of the schema itself, so that it may become a part of another one. In the client's
   schema they are JSON pointers to a part of it; others are left out.
3. What a grammar cannot hold is left out and named, and so is nothing else: words without a meaning for what may be
   written (annotations, formats that are not known) are left out, too. That only one part of `oneOf` holds is not
   looked at: nearly always it follows from their types and tags.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    "const", "enum", "required", "minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
)  # fmt: skip
_UNHELD: Final = (
    "uniqueItems",
    "contains",
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
)
_CHOICES: Final = ("anyOf", "oneOf")
#: What holds for the same object, so that what stands beside a reference is part of a whole.
_OF_OBJECTS: Final = (
    "properties", "patternProperties", "required", "additionalProperties", "unevaluatedProperties", "allOf", *_CHOICES,
)  # fmt: skip
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

    def __init__(self) -> None:
        super().__init__(f"makes more than {_MAX_PARTS} parts: give a smaller schema")


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


@dataclass(slots=True)
class _Declared:
    """The properties that parts of a schema declare. `given`: whether they list properties at all; `others`: whether
    one of them allows others."""

    names: dict[str, None] = field(default_factory=dict)
    patterns: dict[str, None] = field(default_factory=dict)
    given: bool = False
    others: bool = False

    def __or__(self, more: "_Declared") -> "_Declared":
        return _Declared(
            self.names | more.names,
            self.patterns | more.patterns,
            self.given or more.given,
            self.others or more.others,
        )

    def add(self, schema: Mapping[str, Any]) -> None:
        """What the schema itself declares."""
        names, patterns, required = (
            schema.get(word) for word in ("properties", "patternProperties", "required")
        )
        if isinstance(names, dict):
            self.names |= dict.fromkeys(names)
        if isinstance(patterns, dict):
            self.patterns |= dict.fromkeys(pattern for pattern in patterns if is_held(pattern))
            self.others |= not all(map(is_held, patterns))
        if isinstance(required, list):
            self.names |= dict.fromkeys(name for name in required if isinstance(name, str))
        self.given |= isinstance(names, dict) or isinstance(patterns, dict)
        self.others |= (
            schema.get("additionalProperties", schema.get("unevaluatedProperties", False)) is not False
        )


_NOTHING: Final = _Declared()


class _Rewriting:
    """Of one schema. `around`, of each part: what is declared for the same object beside it; None where that is closed,
    or stays open, as a whole."""

    def __init__(self, root: dict[str, Any], prefix: str) -> None:
        self._root = root
        self._prefix = prefix
        self._left_out: dict[str, None] = {}
        self._names: dict[tuple[int, bool], str] = {}
        self._definitions: dict[str, Any] = {}
        self._waiting: list[tuple[str, object, str, _Declared | None]] = []
        self._parts = 0

    def whole(self) -> GrammarSchema:
        root, path = self._followed(self._root)
        made = self._schema(root, path)
        found = made if isinstance(made, dict) else {} if made is True else {"allOf": [False]}
        while self._waiting:
            name, part, path, around = self._waiting.pop()
            self._definitions[name] = self._schema(part, path, around)
        more = {"$defs": self._definitions} if self._definitions else {}
        return GrammarSchema(found | more, tuple(self._left_out))

    def _followed(self, schema: object) -> tuple[object, str]:
        """What a schema that is a reference and nothing else stands for, and the place of that."""
        path, seen = "", set[int]()
        while isinstance(schema, dict) and id(schema) not in seen:
            seen.add(id(schema))
            self._count(1)
            reference = _reference_of(schema)
            if reference is None or any(
                key in schema for key in (*_PLAIN, *_OF_OBJECTS, *_UNHELD, "type", "items")
            ):
                break
            target = _target(reference, self._root)
            if not isinstance(target, dict):
                break
            schema, path = target, _place_of(reference)
        return schema, path

    def _declared(self, schema: object, *, choices: bool) -> _Declared:
        """By all parts that hold for the same object; `choices`: also those of which only some may."""
        found, left, seen = _Declared(), [schema], set[int]()
        while left:
            part = left.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            self._count(_size(part))
            found.add(part)
            reference = _reference_of(part)
            left += () if reference is None else (_target(reference, self._root),)
            for word in ("allOf", *(_CHOICES if choices else ())):
                left += part[word] if isinstance(part.get(word), list) else ()
            dependent = part.get("dependentSchemas")
            left += (part.get(word) for word in ("if", "then", "else"))
            left += dependent.values() if isinstance(dependent, dict) else ()
        return found

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > _MAX_PARTS:
            raise SchemaTooLarge

    def _leave_out(self, path: str, word: str) -> None:
        self._left_out[_inner(path, word)] = None

    # --- one part

    def _schema(self, schema: object, path: str, around: _Declared | None = _NOTHING) -> Any:
        self._count(1)
        if not isinstance(schema, dict):
            return [] if isinstance(schema, list) else schema  # which is no schema, and refused as such
        if "not" in schema and schema["not"] in ({}, True):
            return False
        found = self._typed(schema, path)
        # Clients in Go write null for no list; as a constant it is a value.
        found |= {key: schema[key] for key in _PLAIN if schema.get(key) is not None}
        found |= {"const": None} if schema.get("const", 0) is None else {}
        self._text(schema, path, found)
        self._array(schema, path, found)
        self._properties(schema, path, found)
        if not self._refer(schema, path, around, found):
            self._joined(schema, path, around, found)
        for word in _UNHELD:
            if schema.get(word) not in (None, False, [], {}):
                self._leave_out(path, word)
        if schema.get("unevaluatedItems") not in (None, True) and "items" not in found:
            self._leave_out(path, "unevaluatedItems")
        if isinstance(schema.get("unevaluatedProperties"), dict):
            self._leave_out(path, "unevaluatedProperties")
        return found

    def _typed(self, schema: Mapping[str, Any], path: str) -> dict[str, Any]:
        given, kinds = schema.get("type"), _kinds(schema)
        if given is None:
            return {}
        if not kinds or not all(kind in _TYPES for kind in kinds):
            self._leave_out(path, "type")
            return {}
        return {"type": kinds if isinstance(given, list) else kinds[0]}

    def _text(self, schema: Mapping[str, Any], path: str, found: dict[str, Any]) -> None:
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
            found["prefixItems"] = self._several(first, path, "prefixItems", _NOTHING)
            if rest is None and schema.get("unevaluatedItems") is False:
                rest = False
        if rest is not None:
            found["items"] = self._schema(rest, _inner(path, rest_word))

    def _several(self, parts: list[Any], path: str, word: str, around: _Declared | None) -> list[Any]:
        return [self._schema(one, _inner(path, f"{word}[{at}]"), around) for at, one in enumerate(parts)]

    def _properties(self, schema: Mapping[str, Any], path: str, found: dict[str, Any]) -> None:
        unheld = False
        for word in ("properties", "patternProperties"):
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
            found["additionalProperties"] = (
                True if unheld else self._schema(others, _inner(path, "additionalProperties"))
            )
        if "propertyNames" in schema:
            self._property_names(self._followed(schema["propertyNames"])[0], path, found)

    def _property_names(self, names: object, path: str, found: dict[str, Any]) -> None:
        """Names that are listed, or have a pattern, become properties, which a grammar can hold."""
        said = set(names) - {"type", "title", "description"} if isinstance(names, dict) else {"not"}
        if names is True or not said:
            return
        value = found.get("additionalProperties", True)
        listed, pattern = (
            names.get(word) if isinstance(names, dict) else None for word in ("enum", "pattern")
        )
        alone = len(said) == 1 and not found.get("properties") and not found.get("patternProperties")
        if alone and isinstance(listed, list) and listed and all(type(name) in (str, int) for name in listed):
            self._count(len(listed))
            if isinstance(value, dict):  # once, however many names there are
                name = self._named("value", value)
                value = {"$ref": f"#/$defs/{name}"}
            found["properties"] = dict.fromkeys(map(str, listed), value)
            found["additionalProperties"] = False
        elif alone and isinstance(pattern, str) and is_held(pattern):
            self._count(len(pattern) // _CHARACTERS_OF_PART)
            found["patternProperties"] = {pattern: value}
            found["additionalProperties"] = False
        else:
            self._leave_out(path, "propertyNames")

    # --- parts that hold for the same value

    def _refer(
        self, schema: dict[str, Any], path: str, around: _Declared | None, found: dict[str, Any]
    ) -> bool:
        """Returns whether the schema is as closed as what it refers to, with which nothing is to be joined."""
        reference = _reference_of(schema)
        if reference is None:
            return False
        target = _target(reference, self._root)
        if not isinstance(target, dict | bool):
            self._leave_out(path, "$ref")
            return False
        alone = around == _NOTHING and not any(key in schema for key in _OF_OBJECTS)
        key = (id(target), alone)
        if key not in self._names:
            self._names[key] = self._named(reference)
            self._waiting.append(
                (self._names[key], target, _place_of(reference), _NOTHING if alone else None)
            )
        found["$ref"] = f"#/$defs/{self._names[key]}"
        return alone

    def _joined(
        self, schema: dict[str, Any], path: str, around: _Declared | None, found: dict[str, Any]
    ) -> None:
        """The parts of `allOf`, `anyOf` and `oneOf`, and what closes all of them together."""
        together = self._declared(schema, choices=False)
        is_open = around is None or together.others
        own = together if around is None else around | together
        self._count(len(own.names) if around else 0)
        several = {word: schema[word] for word in ("allOf", *_CHOICES) if schema.get(word) is not None}
        for word, parts in several.items():
            if not isinstance(parts, list):
                found[word] = {}  # no list either, so refused, and without references
                continue
            made = self._several(parts, path, word, None if is_open or word == "allOf" else own)
            if word == "oneOf" and "anyOf" in found:
                found["allOf"] = [*found.get("allOf", ()), {"anyOf": made}]
            else:
                found["allOf" if word == "allOf" else "anyOf"] = made
        tag = self._tag(schema)
        if tag is not None:
            found["required"] = [tag]
        shut = schema.get("unevaluatedProperties") is False
        given = shut or (own.given and _may_be_object(schema))
        if given and not is_open and "additionalProperties" not in found:
            every = self._declared(schema, choices=True)
            if not every.others:
                self._close(own | every, found)

    def _close(self, declared: _Declared, found: dict[str, Any]) -> None:
        for word, names in (("properties", declared.names), ("patternProperties", declared.patterns)):
            known = found.get(word, {})
            if isinstance(known, dict) and (names or word in found):
                found[word] = {**known, **{name: True for name in names if name not in known}}
                self._count(len(found[word]))
        found["additionalProperties"] = False

    def _named(self, reference: str, definition: object = None) -> str:
        """A new name for a definition."""
        last = "".join(c for c in reference.rpartition("/")[2] if c.isascii() and (c.isalnum() or c in "_-."))
        name = f"{self._prefix}{last[:64] or 'part'}"
        if name in self._definitions:
            name = f"{name}-{len(self._definitions)}"
        self._definitions[name] = definition
        return name

    def _tag(self, schema: Mapping[str, Any]) -> str | None:
        """The property that says which of several an object is: OpenAPI's discriminator. pydantic gives it a default,
        so that it is not required."""
        given = schema.get("discriminator")
        tag = given.get("propertyName") if isinstance(given, dict) else None
        if not isinstance(tag, str) or schema.get("required") not in (None, []):
            return None
        lists = [schema[word] for word in _CHOICES if isinstance(schema.get(word), list)]
        parts = [one for several in lists for one in several]
        return tag if all(tag in self._declared(one, choices=True).names for one in parts) else None


def _target(reference: str, root: object) -> object:
    """The part of the schema that the reference names; None where there is none."""
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


def _reference_of(schema: Mapping[str, Any]) -> str | None:
    """What the schema refers to, if anything."""
    reference = schema.get("$ref")
    return reference if isinstance(reference, str) else None


def _place_of(reference: str) -> str:
    """The place that the reference names, as the name of a field has it."""
    return ".".join(part for part in reference.partition("#")[2].split("/") if part)


def _inner(path: str, *keys: str) -> str:
    """The place of a part. Of a long path, the end."""
    *outer, last = (path, *keys) if path else keys
    return ".".join((*filter(None, (".".join(outer)[-_MAX_PLACE:],)), last))


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    """The types, also where they are written in capitals, as clients of Gemini's do; "" for what is none."""
    given = schema.get("type")
    return [
        kind.lower() if isinstance(kind, str) else ""
        for kind in (given if isinstance(given, list) else [given])
    ]


def _may_be_object(schema: Mapping[str, Any]) -> bool:
    """Also where no type is known."""
    kinds = _kinds(schema)
    return "object" in kinds or not all(kind in _TYPES for kind in kinds)


def _size(schema: Mapping[str, Any]) -> int:
    """How much work it is to see what the schema declares."""
    names, patterns, required = (schema.get(word) for word in ("properties", "patternProperties", "required"))
    lists = sum(len(one) for one in (names, required) if isinstance(one, dict | list))
    return 1 + lists + (sum(map(len, patterns)) if isinstance(patterns, dict) else 0)
