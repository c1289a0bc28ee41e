"""Tables of the fields that JSON objects of clients may have: types, ranges and meanings, as JSON Schema. `fields`
reads requests by them, and `openapi` shows them. A module that has such tables calls this one `t`."""

from typing import Any, Final

from tpiedge.wire.fields import Range

JsonSchema = dict[str, Any]

MAX_ENTRIES: Final = 4096
"""Of an array of messages, or of the parts of one."""
TEXT: Final[JsonSchema] = {"type": "string"}
OBJECT: Final[JsonSchema] = {"type": ["object", "null"]}


class Vain(JsonSchema):
    """Of a field that may have any value, without an effect."""


class Unsupported(JsonSchema):
    """Of a field that may only say what is so anyway."""


VAIN: Final = Vain(description="Has no effect.")


def unsupported(*harmless: object, why: str = "") -> JsonSchema:
    """A field that is refused, unless it is null, empty or one of the `harmless` values. `why` begins with a comma."""
    return Unsupported(enum=[None, [], {}, *harmless], description=f"is not supported{why}")


def vain(*names: str) -> dict[str, JsonSchema]:
    return dict.fromkeys(names, VAIN)


def body(*needed: str, **fields: JsonSchema) -> JsonSchema:
    """An object that a client sends; fields that are not in it have no effect."""
    return {"type": "object", "properties": fields, "required": [*needed]}


def optional(schema: JsonSchema, description: str = "") -> JsonSchema:
    """An object that may be null."""
    return {**schema, "type": ["object", "null"], "description": description}


def tagged(tag: str, **forms: JsonSchema) -> dict[str, JsonSchema]:
    """The objects that may stand at one place, by what their field `tag` says."""
    return {
        name: body(tag, *form["required"], **{tag: {"const": name}, **form["properties"]})
        for name, form in forms.items()
    }


def any_of(*schemas: JsonSchema, description: str = "") -> JsonSchema:
    return {"anyOf": [*schemas], **({"description": description} if description else {})}


def number(allowed: Range, description: str) -> JsonSchema:
    return {
        "type": ["number", "null"],
        "minimum": allowed.low,
        "maximum": allowed.high,
        "description": description,
    }


def integer(low: int, high: int, description: str) -> JsonSchema:
    return {"type": ["integer", "null"], "minimum": low, "maximum": high, "description": description}


def flag(description: str) -> JsonSchema:
    return {"type": ["boolean", "null"], "description": description}


def text(description: str = "", most: int = 0) -> JsonSchema:
    schema: JsonSchema = {"type": ["string", "null"], "description": description}
    return schema | {"maxLength": most} if most else schema


def word(*words: str, description: str = "") -> JsonSchema:
    """One of some words."""
    return {"enum": [*words, None], "description": description}


def array(items: JsonSchema, description: str = "", most: int = MAX_ENTRIES) -> JsonSchema:
    return {"type": ["array", "null"], "items": items, "maxItems": most, "description": description}
