"""Whether at most one of several JSON schemas holds for a value, as far as types and tags show it. Pure."""

import json
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any, Final, Protocol

_MAX_SCHEMAS: Final = 100
_MAX_VALUES: Final = 100
_MAX_CHARACTERS: Final = 256
_TYPES: Final = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_TYPE_OF: Final = {str: "string", bool: "boolean", dict: "object", list: "array", type(None): "null"}

_Object = dict[str, Any]


class SchemaFacts(Protocol):
    """What is known of the schemas beyond their own words."""

    def follow(self, schema: object) -> object:
        """What a reference stands for."""
        ...

    def closed_names(self, schema: _Object) -> Collection[str] | None:
        """All properties that an object of the schema may have; None where it may have others."""
        ...


def are_disjoint(schemas: Sequence[object], facts: SchemaFacts, tag: str | None) -> bool:
    """`tag` is a property that every object of them has. False where it cannot be told."""
    if len(schemas) > _MAX_SCHEMAS:
        return False
    followed = [facts.follow(schema) for schema in schemas]
    known = [_Alternative(schema, facts, tag) for schema in followed if isinstance(schema, dict)]
    return len(known) == len(followed) and all(one.differs(other) for one, other in combinations(known, 2))


class _Alternative:
    """One of the schemas: everything about it that is compared, found once."""

    def __init__(self, schema: _Object, facts: SchemaFacts, tag: str | None) -> None:
        self._schema = schema
        self._facts = facts
        self._values = _values(schema)
        self._types = _types(schema)
        self._names = facts.closed_names(schema)
        self._required = _required(schema)
        self._tags = self._required | {tag} if tag else self._required
        self._tag_values: dict[str, frozenset[str] | None] = {}

    def differs(self, other: "_Alternative") -> bool:
        """Whether no value is of both."""
        if self._values is not None and other._values is not None:
            return self._values.isdisjoint(other._values)
        common = self._types & other._types
        if common != {"object"}:
            return not common
        return self._lacks(other) or other._lacks(self) or self._is_tagged_otherwise(other)

    def _lacks(self, other: "_Alternative") -> bool:
        """Whether an object of this schema may not have what one of the other must."""
        return self._names is not None and not other._required.issubset(self._names)

    def _is_tagged_otherwise(self, other: "_Alternative") -> bool:
        """Whether a property that objects of both must have has other values in one than in the other."""
        for name in self._tags & other._tags:
            own, others = self._values_of(name), other._values_of(name)
            if own is not None and others is not None and own.isdisjoint(others):
                return True
        return False

    def _values_of(self, name: str) -> frozenset[str] | None:
        if name not in self._tag_values:
            properties = self._schema.get("properties")
            found = self._facts.follow(properties.get(name)) if isinstance(properties, dict) else None
            self._tag_values[name] = _values(found) if isinstance(found, dict) else None
        return self._tag_values[name]


def _required(schema: _Object) -> frozenset[str]:
    names = schema.get("required")
    return (
        frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
    )


def _values(schema: _Object) -> frozenset[str] | None:
    """All that it allows, where it lists it. None for more, or longer values, than it is worth to compare: all pairs
    may refer to one list."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(listed, list) or len(listed) > _MAX_VALUES:
        return None
    if any(isinstance(value, list | dict) or len(str(value)) > _MAX_CHARACTERS for value in listed):
        return None
    return frozenset(json.dumps(value) for value in listed)


def _types(schema: _Object) -> frozenset[str]:
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        found = {_TYPE_OF.get(type(value), "number") for value in listed}
    else:
        given = schema.get("type")
        found = {kind for kind in (given if isinstance(given, list) else [given]) if isinstance(kind, str)}
    if not found:
        return _TYPES
    return frozenset(found | {"integer"} if "number" in found else found)
