"""Makes of a client's JSON schema the one that a grammar is made of. Pure.

Laws:
1. An object has the properties that its schema declares and no others, unless the schema says something of others
   itself. Declared are those of all parts that hold for the same object: the parts of `allOf`, and what `$ref` names
   beside other words. Each part of `anyOf` and `oneOf` is an object of its own, with what is declared around it.
2. All references are to `$defs` of the schema itself, so that it may become a part of another one.
3. What a grammar cannot hold is left out and named, and so is nothing else: words without a meaning for what may be
   written (annotations, formats that are not known) are left out, too.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tpiedge.api.disjoint_schemas import are_disjoint
from tpiedge.api.schema_patterns import is_held
from tpiedge.api.schema_references import SchemaReferences
from tpiedge.api.schema_words import (
    CHOICES,
    CONDITIONS,
    FORMATS,
    OF_OBJECTS,
    PLAIN,
    SAYING,
    TYPES,
    has_unheld_patterns,
    is_only_pattern,
    listed_names,
    may_be_object,
    place_of,
    reference_of,
    restricts_names,
    unheld_words,
)

_MAX_PARTS: Final = 20_000
#: Longer ones of the characters of places and patterns would be work that the number of parts does not show.
_MAX_PLACE: Final = 256
_CHARACTERS_OF_PART: Final = 100


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


@dataclass(frozen=True, slots=True)
class _PartPlace:
    """Where a part is written. `around`: what is declared for the same object beside it; None where that is closed, or
    stays open, as a whole."""

    path: str
    around: _Declared | None = field(default_factory=_Declared)

    def inner(self, *keys: str) -> "_PartPlace":
        """Of another value. Of a long path, the end."""
        path = ".".join((self.path, *keys) if self.path else keys)
        return _PartPlace(path[-_MAX_PLACE:])


class _Rewriting:
    """Of one schema."""

    def __init__(self, root: dict[str, Any], prefix: str) -> None:
        self._root = root
        self._prefix = prefix
        self._references = SchemaReferences(root)
        self._left_out: dict[str, None] = {}
        self._names: dict[tuple[int, bool], str] = {}
        self._taken: set[str] = set()
        self._definitions: dict[str, Any] = {}
        self._waiting: list[tuple[str, object, _PartPlace]] = []
        self._parts = 0

    def whole(self) -> GrammarSchema:
        root, path = self.followed(self._root)
        made = self._schema(root, _PartPlace(path))
        found = made if isinstance(made, dict) else {} if made is True else {"allOf": [False]}
        while self._waiting:
            name, part, place = self._waiting.pop()
            self._definitions[name] = self._schema(part, place)
        more = {"$defs": self._definitions} if self._definitions else {}
        return GrammarSchema(found | more, tuple(self._left_out))

    def followed(self, schema: object) -> tuple[object, str]:
        """What a schema that is a reference and nothing else stands for, and the place of that."""
        path, seen = "", set[int]()
        while isinstance(schema, dict) and id(schema) not in seen:
            seen.add(id(schema))
            self._count(1)
            reference = reference_of(schema)
            if reference is None or any(key in schema for key in SAYING):
                break
            target = self._references.target(reference, schema)
            if not isinstance(target, dict):
                break
            schema, path = target, place_of(reference)
        return schema, path

    def declared(self, schema: object, *, choices: bool) -> _Declared:
        """By all parts that hold for the same object; `choices`: also those of which only some may."""
        found = _Declared()
        left, seen = [schema], set[int]()
        while left:
            part = left.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            self._count(_size(part))
            _add_own(part, found)
            target = reference_of(part)
            if target is not None:
                left.append(self._references.target(target, part))
            for word in ("allOf", *(CHOICES if choices else ())):
                left += part[word] if isinstance(part.get(word), list) else ()
            left += (part.get(word) for word in CONDITIONS)
            dependent = part.get("dependentSchemas")
            left += dependent.values() if isinstance(dependent, dict) else ()
        return found

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > _MAX_PARTS:
            raise SchemaTooLarge

    def _count_pattern(self, schema: Mapping[str, Any]) -> None:
        pattern = schema.get("pattern")
        self._count(len(pattern) // _CHARACTERS_OF_PART if isinstance(pattern, str) else 0)

    def _leave_out(self, place: _PartPlace, word: str) -> None:
        self._left_out[f"{place.path}.{word}" if place.path else word] = None

    # --- one part

    def _schema(self, schema: object, place: _PartPlace) -> Any:
        self._count(1)
        if not isinstance(schema, dict):
            return schema
        if schema.get("not") in ({}, True) and "not" in schema:
            return False
        found: dict[str, Any] = {}
        self._type(schema, place, found)
        # Clients in Go write null for no list; as a constant it is a value.
        found |= {
            key: schema[key]
            for key in PLAIN
            if schema.get(key) is not None or (key == "const" and key in schema)
        }
        self._text(schema, place, found)
        self._array(schema, place, found)
        self._properties(schema, place, found)
        self._joined(schema, place, found)
        self._unheld(schema, place)
        return found

    def _type(self, schema: Mapping[str, Any], place: _PartPlace, found: dict[str, Any]) -> None:
        given = schema.get("type")
        if given is None:
            return
        kinds = given if isinstance(given, list) else [given]
        known = [kind.lower() for kind in kinds if isinstance(kind, str) and kind.lower() in TYPES]
        if len(known) < len(kinds):
            self._leave_out(place, "type")
        if len(known) == len(kinds) and known:
            found["type"] = known if isinstance(given, list) else known[0]

    def _text(self, schema: Mapping[str, Any], place: _PartPlace, found: dict[str, Any]) -> None:
        if schema.get("format") in FORMATS:
            found["format"] = schema["format"]
        pattern = schema.get("pattern")
        self._count_pattern(schema)
        if isinstance(pattern, str) and not is_held(pattern):
            self._leave_out(place, "pattern")
        elif pattern is not None:
            found["pattern"] = pattern

    def _array(self, schema: Mapping[str, Any], place: _PartPlace, found: dict[str, Any]) -> None:
        first, rest = schema.get("prefixItems"), schema.get("items")
        rest_word = "items"
        if isinstance(rest, list):  # as until 2020
            first, rest, rest_word = rest, schema.get("additionalItems"), "additionalItems"
        if isinstance(first, list):
            found["prefixItems"] = [
                self._schema(one, place.inner(f"prefixItems[{at}]")) for at, one in enumerate(first)
            ]
            if rest is None and schema.get("unevaluatedItems") is False:
                rest = False
        if rest is not None:
            found["items"] = self._schema(rest, place.inner(rest_word))

    def _properties(self, schema: Mapping[str, Any], place: _PartPlace, found: dict[str, Any]) -> None:
        for word in ("properties", "patternProperties"):
            given = schema.get(word)
            if isinstance(given, dict):
                found[word] = {
                    name: self._schema(value, place.inner(word, name))
                    for name, value in given.items()
                    if word == "properties" or is_held(name)
                }
                if len(found[word]) < len(given):
                    self._leave_out(place, word)
            elif given is not None:
                found[word] = given
        others = schema.get("additionalProperties")
        if others is not None:
            unheld = has_unheld_patterns(schema)
            found["additionalProperties"] = (
                True if unheld else self._schema(others, place.inner("additionalProperties"))
            )
        self._property_names(schema, place, found)

    def _property_names(self, schema: Mapping[str, Any], place: _PartPlace, found: dict[str, Any]) -> None:
        """Names become properties, which a grammar can hold."""
        if "propertyNames" not in schema:
            return
        names = self.followed(schema["propertyNames"])[0]
        if names is True or (isinstance(names, dict) and not restricts_names(names)):
            return
        value = found.get("additionalProperties", True)
        alone = isinstance(names, dict) and not found.get("properties") and not found.get("patternProperties")
        listed = listed_names(names) if isinstance(names, dict) and alone else None
        if isinstance(names, dict):
            self._count_pattern(names)
        if listed is not None:
            self._count(len(listed))
            if isinstance(value, dict):  # once, however many names there are
                name = self._named("value")
                self._definitions[name] = value
                value = {"$ref": f"#/$defs/{name}"}
            found["properties"] = dict.fromkeys(listed, value)
            found["additionalProperties"] = False
        elif isinstance(names, dict) and alone and is_only_pattern(names):
            found["patternProperties"] = {names["pattern"]: value}
            found["additionalProperties"] = False
        else:
            self._leave_out(place, "propertyNames")

    # --- parts that hold for the same value

    def _joined(self, schema: dict[str, Any], place: _PartPlace, found: dict[str, Any]) -> None:
        """References, the parts of `allOf`, `anyOf` and `oneOf`, and what closes all of them together."""
        if self._refer(schema, place, found):
            return
        together = self.declared(schema, choices=False)
        around = place.around
        is_open = around is None or together.others
        own = together if around is None else around | together
        self._count(len(own.names) if around else 0)
        if isinstance(schema.get("allOf"), list):
            found["allOf"] = self._several(schema, "allOf", place, None)
        for word in CHOICES:
            if isinstance(schema.get(word), list):
                self._choose(schema, word, place, None if is_open else own, found)
        for word in ("allOf", *CHOICES):
            if schema.get(word) is not None and not isinstance(schema[word], list):
                found[word] = {}  # no list either, so refused, and without references
        shut = schema.get("unevaluatedProperties") is False
        given = shut or (own.given and may_be_object(schema))
        if given and not is_open and "additionalProperties" not in found:
            every = self.declared(schema, choices=True)
            if not every.others:
                self._close(own | every, found)

    def _close(self, declared: _Declared, found: dict[str, Any]) -> None:
        for word, names in (("properties", declared.names), ("patternProperties", declared.patterns)):
            known = found.get(word, {})
            if isinstance(known, dict) and (names or word in found):
                found[word] = {**known, **{name: True for name in names if name not in known}}
                self._count(len(found[word]))
        found["additionalProperties"] = False

    def _refer(self, schema: dict[str, Any], place: _PartPlace, found: dict[str, Any]) -> bool:
        """Returns whether the schema is as closed as what it refers to, with which nothing is to be joined."""
        reference = reference_of(schema)
        if reference is None:
            return False
        target = self._references.target(reference, schema)
        if not isinstance(target, dict | bool):
            self._leave_out(place, "$ref")
            return False
        around = place.around
        alone = around == _Declared() and not any(key in schema for key in OF_OBJECTS)
        key = (id(target), alone)
        if key not in self._names:
            self._names[key] = self._named(reference)
            inner = _PartPlace(place_of(reference), _Declared() if alone else None)
            self._waiting.append((self._names[key], target, inner))
        found["$ref"] = f"#/$defs/{self._names[key]}"
        return alone

    def _named(self, reference: str) -> str:
        """A new name for a definition."""
        last = "".join(c for c in reference.rpartition("/")[2] if c.isascii() and (c.isalnum() or c in "_-."))
        name = f"{self._prefix}{last[:64] or 'part'}"
        if name in self._taken:
            name = f"{name}-{len(self._taken)}"
        self._taken.add(name)
        return name

    def _several(
        self, schema: dict[str, Any], word: str, place: _PartPlace, around: _Declared | None
    ) -> list[Any]:
        return [
            self._schema(one, _PartPlace(place.inner(f"{word}[{at}]").path, around))
            for at, one in enumerate(schema[word])
        ]

    def _choose(
        self,
        schema: dict[str, Any],
        word: str,
        place: _PartPlace,
        around: _Declared | None,
        found: dict[str, Any],
    ) -> None:
        """One of several. That only one may hold is left out where it does not follow from what they are."""
        made = self._several(schema, word, place, around)
        self._count(len(made) ** 2 // 2)
        tag = self._tag(schema)
        if tag is not None:
            found["required"] = [tag]
        if word == "oneOf" and not are_disjoint(schema[word], _Facts(self, around), tag):
            self._leave_out(place, word)
        if word == "oneOf" and "anyOf" in found:
            found["allOf"] = [*found.get("allOf", ()), {"anyOf": made}]
        else:
            found["anyOf"] = made

    def _tag(self, schema: Mapping[str, Any]) -> str | None:
        """The property that says which of several an object is: OpenAPI's discriminator."""
        given = schema.get("discriminator")
        tag = given.get("propertyName") if isinstance(given, dict) else None
        if not isinstance(tag, str) or schema.get("required") not in (None, []):
            return None
        lists = [schema[word] for word in CHOICES if isinstance(schema.get(word), list)]
        parts = [one for several in lists for one in several]
        return tag if all(tag in self.declared(one, choices=True).names for one in parts) else None

    # --- what is left out

    def _unheld(self, schema: Mapping[str, Any], place: _PartPlace) -> None:
        for word in unheld_words(schema):
            self._leave_out(place, word)


class _Facts:
    """SchemaFacts of the parts of a choice. `around` as of their places."""

    def __init__(self, rewriting: _Rewriting, around: _Declared | None) -> None:
        self._rewriting = rewriting
        self._around = around

    def follow(self, schema: object) -> object:
        return self._rewriting.followed(schema)[0]

    def closed_names(self, schema: dict[str, Any]) -> Collection[str] | None:
        declared = self._rewriting.declared(schema, choices=True)
        if self._around is None or declared.others or not (declared.given or self._around.given):
            return None
        every = self._around | declared
        return None if every.patterns else every.names


def _size(schema: Mapping[str, Any]) -> int:
    """How much work it is to see what the schema declares."""
    names, patterns, required = (schema.get(word) for word in ("properties", "patternProperties", "required"))
    lists = sum(len(one) for one in (names, required) if isinstance(one, dict | list))
    return 1 + lists + (sum(map(len, patterns)) if isinstance(patterns, dict) else 0)


def _add_own(schema: Mapping[str, Any], found: _Declared) -> None:
    """What the schema itself declares."""
    names, patterns = schema.get("properties"), schema.get("patternProperties")
    if isinstance(names, dict):
        found.names |= dict.fromkeys(names)
        found.given = True
    if isinstance(patterns, dict):
        found.patterns |= dict.fromkeys(pattern for pattern in patterns if is_held(pattern))
        found.given = True
    required = schema.get("required")
    if isinstance(required, list):
        found.names |= dict.fromkeys(name for name in required if isinstance(name, str))
    others = schema.get("additionalProperties", schema.get("unevaluatedProperties", False))
    found.others |= others is not False or has_unheld_patterns(schema)
