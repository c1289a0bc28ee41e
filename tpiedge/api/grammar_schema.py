"""Rewrites a client's JSON schema so that a grammar can enforce it. Pure.

An object has only declared properties, unless its schema allows others. Schemas in `allOf`, `if` and similar keywords
declare properties of the same object. The targets of references do the same. Each alternative of `anyOf` or `oneOf`
adds its own properties.

Keywords that a grammar cannot enforce are left out and reported. Annotations and unknown formats are left out without a
report. `oneOf` is read as `anyOf`."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

_MAX_PARTS: Final = 20_000
#: Limits of long places and patterns, whose cost the number of parts does not show.
_MAX_PLACE: Final = 256
_CHARACTERS_OF_PART: Final = 100
_TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
_FORMATS: Final = (
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid",
)  # fmt: skip
#: Keywords whose values are copied.
_PLAIN: Final = (
    "required", "minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength", "multipleOf",
)  # fmt: skip
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_UNHELD: Final = (
    "uniqueItems", "contains", "not", "if", "dependentRequired", "dependentSchemas", "dependencies",
)  # fmt: skip
#: Doubles have all integers up to the first; the second is the largest double within a signed integer of 64 bits.
_EXACT, _LARGEST = 1 << 53, (1 << 63) - (1 << 10)
_CHOICES: Final = ("anyOf", "oneOf")
_OWN: Final = ("properties", "patternProperties")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_DEPENDENT: Final = ("dependentSchemas", "dependencies")
#: Keywords whose parts apply to the same object.
_JOINED: Final = ("allOf", "if", "then", "else", *_DEPENDENT)
_OF_OBJECTS: Final = (
    *_OWN, *_JOINED, *_CHOICES, "required", "additionalProperties", "unevaluatedProperties",
)  # fmt: skip
_ESCAPE: Final = r"\\(?:[pP]\{[^}]{0,64}\}|(?!u[dD][89a-fA-F])[aftnrvxuUdDsSwWAzpP]|(?![\w<>])[ -~])"
_CLASS: Final = rf"\[\^?+\]?+(?:{_ESCAPE}|\[:\^?\w+:\]|[^\\\[\]])*+\]"
#: Names that the parts of one object declare, keyed by keyword; None if a part allows undeclared names.
_Declared = dict[str, dict[str, bool]] | None
_NOTHING: Final[_Declared] = {}
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
    """Rewrites a client's schema to `schema`. `left_out` has the paths of omitted keywords. The argument `around` of
    methods has the names that other parts of the same object declare. It is None if a part allows undeclared names."""

    def __init__(self, root: dict[str, Any], prefix: str = "") -> None:
        """`prefix`: the beginning of all definitions' names. Raises SchemaTooLarge."""
        self._root: object = root
        self._prefix = prefix
        self.left_out: dict[str, None] = {}
        self._names: dict[tuple[int, bool], str] = {}
        self._definitions: dict[str, Any] = {}
        self._waiting: list[tuple[str, object, str, _Declared, object]] = []
        self._parts = 0
        made = self._schema(root, "")
        found: dict[str, Any] = made if isinstance(made, dict) else {} if made is True else {"allOf": [False]}
        while self._waiting:
            name, part, path, around, self._root = self._waiting.pop()
            self._definitions[name] = self._schema(part, path, around)
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

    def _declared(self, schema: object, words: Sequence[str], around: _Declared) -> _Declared:
        """Adds to `around` the names that `schema` and its parts declare."""
        if around is None:
            return None
        found, left = {word: {**names} for word, names in around.items()}, [(schema, self._root)]
        seen = set[int]()
        self._count(sum(map(len, found.values())))
        for part, root in left:
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            self._count(1)
            if part.get("additionalProperties", part.get("unevaluatedProperties", False)) is not False:
                return None
            for word in (*_OWN, "required"):
                given = part.get(word)
                if isinstance(given, list if word == "required" else dict):
                    names = [name for name in given if isinstance(name, str)]
                    self._count(len(given) + sum(map(len, names)) // _CHARACTERS_OF_PART)
                    if word == "patternProperties" and not all(map(is_held, names)):
                        return None
                    found.setdefault(word, {}).update(dict.fromkeys(names, True))
            inside = _document(part, root)
            left += [(_target(part.get(word), inside), inside) for word in _REFERENCES]
            for word in words:
                inner = part.get(word)
                inner = [*inner.values()] if word in _DEPENDENT and isinstance(inner, dict) else inner
                several = inner if isinstance(inner, list) else [inner]
                self._count(len(several) // 2)
                left += [(one, inside) for one in several]
        return found

    def _schema(self, schema: object, path: str, around: _Declared = _NOTHING) -> Any:
        self._count(1)
        if not isinstance(schema, dict):
            return [] if isinstance(schema, list) else schema  # a list is no schema, and is refused later
        if "not" in schema and schema["not"] in ({}, True):
            return False
        found: dict[str, Any] = {}
        outer, self._root = self._root, _document(schema, self._root)
        self._value(schema, path, found)
        self._array(schema, path, found)
        self._properties(schema, path, found)
        alone = around == {} and not any(word in schema for word in _OF_OBJECTS)
        self._refer(schema, path, found, alone)
        if not (alone and "$ref" in found):  # the target is closed itself
            self._join(schema, path, found, around)
        for word in _UNHELD:
            said = schema.get(word)
            if said is not None and (word in ("contains", "if") or said not in (False, [], {})):
                self._leave_out(path, word)
        for word, held in (("unevaluatedItems", "items"), ("unevaluatedProperties", "additionalProperties")):
            if schema.get(word) not in (None, True) and held not in found:
                self._leave_out(path, word)
        self._root = outer
        return found

    def _join(self, schema: dict[str, Any], path: str, found: dict[str, Any], around: _Declared) -> None:
        """Adds the parts of `allOf` and of choices to `found`; forbids undeclared names."""
        own = self._declared(schema, _JOINED, around)
        self._choices(schema, path, found, own)
        kinds = _kinds(schema)
        may_be_object = "object" in kinds or not all(kind in _TYPES for kind in kinds)
        shut = schema.get("unevaluatedProperties") is False
        shut = shut or (own is not None and may_be_object and any(word in own for word in _OWN))
        every = self._declared(schema, (*_JOINED, *_CHOICES), around) if own is not None and shut else None
        if every is None or "additionalProperties" in found:
            return
        every["properties"] = every.get("properties", {}) | every.pop("required", {})
        for word, names in every.items():
            known = found.get(word, {})
            if isinstance(known, dict) and (names or word in found):
                found[word] = names | known
        found["additionalProperties"] = False

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
        if pattern is not None:
            self._count(len(str(pattern)) // _CHARACTERS_OF_PART)
            self._keep(found, path, "pattern", pattern, isinstance(pattern, str) and is_held(pattern))

    def _array(self, schema: Mapping[str, Any], path: str, found: dict[str, Any]) -> None:
        first, rest, rest_word = schema.get("prefixItems"), schema.get("items"), "items"
        if isinstance(rest, list):  # the form until 2020
            first, rest, rest_word = rest, schema.get("additionalItems"), "additionalItems"
        if isinstance(first, list):
            found["prefixItems"] = self._several(first, path, "prefixItems")
            if rest is None and schema.get("unevaluatedItems") is False:
                rest = False
        if rest is not None:
            found["items"] = self._schema(rest, _inner(path, rest_word))

    def _several(self, parts: list[Any], path: str, word: str, around: _Declared = _NOTHING) -> list[Any]:
        return [self._schema(one, _inner(path, f"{word}[{at}]"), around) for at, one in enumerate(parts)]

    def _properties(self, schema: Mapping[str, Any], path: str, found: dict[str, Any]) -> None:
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

    def _refer(self, schema: dict[str, Any], path: str, found: dict[str, Any], alone: bool) -> None:
        for word in _REFERENCES:
            reference = schema.get(word)
            if reference is None:
                continue
            target = _target(reference, self._root)
            if not isinstance(target, dict | bool) or "$ref" in found:
                self._leave_out(path, word)
                continue
            name = self._names.get((id(target), alone))
            if name is None:
                last = re.sub(r"[^\w.-]", "", reference.rpartition("/")[2], flags=re.ASCII)
                name = f"{self._prefix}{last[:64] or 'part'}"
                name = f"{name}-{len(self._definitions)}" if name in self._definitions else name
                self._names[id(target), alone], self._definitions[name] = name, None
                place = ".".join(filter(None, reference.partition("#")[2].split("/")))
                self._waiting.append((name, target, place, _NOTHING if alone else None, self._root))
            found["$ref"] = f"#/$defs/{name}"

    def _choices(self, schema: dict[str, Any], path: str, found: dict[str, Any], own: _Declared) -> None:
        for word in ("allOf", *_CHOICES):
            parts = schema.get(word)
            if parts is None:
                continue
            if not isinstance(parts, list):
                found[word] = {}  # is refused later, but has no references
                continue
            made = self._several(parts, path, word, None if word == "allOf" else own)
            if word == "oneOf" and "anyOf" in found:
                found["allOf"] = [*found.get("allOf", ()), {"anyOf": made}]
            else:
                found["allOf" if word == "allOf" else "anyOf"] = made
        # Pydantic gives OpenAPI's discriminator a default, so its schema does not require it.
        given = schema.get("discriminator")
        tag = given.get("propertyName") if isinstance(given, dict) else None
        if isinstance(tag, str) and schema.get("required") in (None, []):
            found["required"] = [tag]


def _is_exact(value: object) -> bool:
    """Whether all integers are exact as doubles, which llguidance uses."""
    if isinstance(value, dict | list):
        return all(map(_is_exact, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or abs(value) <= _EXACT


def _within(bound: object, word: str, whole: bool) -> object:
    """Rounds a bound inwards to a double; if `whole`, also to 64 bits."""
    if not isinstance(bound, int) or not _EXACT < abs(bound) < 1 << 1023:
        return bound
    upwards = word in ("minimum", "exclusiveMinimum")
    if whole:
        bound = max(-_LARGEST, bound) if upwards else min(_LARGEST, bound)
    near = float(bound)
    if near < bound if upwards else near > bound:
        near = math.nextafter(near, math.inf if upwards else -math.inf)
    return int(near)


def _document(schema: Mapping[str, Any], outer: object) -> object:
    identity = schema.get("$id")
    return schema if isinstance(identity, str) and not identity.startswith("#") else outer


def _target(reference: object, root: object) -> object:
    if not isinstance(reference, str) or len(reference) > 2 * _MAX_PLACE:
        return None
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
    *outer, last = (path, *keys) if path else keys
    return ".".join((*filter(None, (".".join(outer)[-_MAX_PLACE:],)), last))


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    given = schema.get("type")
    kinds = given if isinstance(given, list) else [given]
    # Gemini's clients write capitals.
    return [kind.lower() if isinstance(kind, str) else "" for kind in kinds]
