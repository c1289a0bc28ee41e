"""Whether at most one of several JSON schemas holds for a value, as far as types and tags show it. Pure."""

import json
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any, Final, Protocol

__all__ = ["SchemaFacts", "are_disjoint"]

_MAX_SCHEMAS: Final = 100
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
    followed = [facts.follow(schema) for schema in schemas]
    known = [schema for schema in followed if isinstance(schema, dict)]
    if len(known) < len(followed) or len(known) > _MAX_SCHEMAS:
        return False
    return all(_differ(one, other, facts, tag) for one, other in combinations(known, 2))


def _differ(one: _Object, other: _Object, facts: SchemaFacts, tag: str | None) -> bool:
    values = _values(one), _values(other)
    if values[0] is not None and values[1] is not None:
        return values[0].isdisjoint(values[1])
    common = _types(one) & _types(other)
    if common != {"object"}:
        return not common
    if _lacks(one, other, facts) or _lacks(other, one, facts):
        return True
    tags = (_required(one) & _required(other)) | ({tag} if tag else set())
    return any(_tags_differ(name, one, other, facts) for name in tags)


def _lacks(one: _Object, other: _Object, facts: SchemaFacts) -> bool:
    """Whether an object of the first schema may not have what one of the other must."""
    names = facts.closed_names(one)
    return names is not None and not _required(other).issubset(names)


def _tags_differ(name: str, one: _Object, other: _Object, facts: SchemaFacts) -> bool:
    """Whether the property has other values in one of the schemas than in the other."""
    properties = one.get("properties"), other.get("properties")
    found = [facts.follow(each.get(name)) for each in properties if isinstance(each, dict)]
    first, *more = [_values(schema) if isinstance(schema, dict) else None for schema in found] or [None]
    return first is not None and len(more) == 1 and more[0] is not None and first.isdisjoint(more[0])


def _required(schema: _Object) -> set[str]:
    names = schema.get("required")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _values(schema: _Object) -> frozenset[str] | None:
    """All that it allows, where it lists it."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return (
        frozenset(json.dumps(value, sort_keys=True) for value in listed) if isinstance(listed, list) else None
    )


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
