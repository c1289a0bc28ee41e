"""Checks clients' JSON objects by tables in JSON Schema. Other modules import this one as `t`.

A null field counts as missing. A field is refused if its name is one edit away from a known name. Other unknown fields
are ignored and reported."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

from tpiedge.api.body import Excessive, parse
from tpiedge.api.errors import ApiError, refused
from tpiedge.wire.fields import Range

JsonSchema = dict[str, Any]

IGNORED: Final = "x-ignored-fields"
"""The header that lists the request's ignored fields."""
MAX_ENTRIES: Final = 4096
MAX_TEXT_VALUES: Final = 65_536
"""The limit of JSON values in all text fields of a request together."""
TEXT: Final[JsonSchema] = {"type": "string"}
OBJECT: Final[JsonSchema] = {"type": ["object", "null"]}

_NEAR_LENGTH: Final = 6  # Shorter names differ by one letter on purpose: top_k, top_p.
_MOST_UNKNOWN: Final = 256
_SHOWN: Final = 64
_INDEX: Final = re.compile(r"\[\d+\]")
_STRANGE: Final = re.compile(r"[^\w.$\[\]-]", re.ASCII)
_TYPES: Final[Mapping[str, tuple[str, type | tuple[type, ...]]]] = {
    "string": ("a string", str), "boolean": ("true or false", bool), "integer": ("an integer", int),
    "number": ("a number", (int, float)), "object": ("an object", dict), "array": ("an array", list),
}  # fmt: skip
_MEDIA: Final = {"image": "images are", "audio": "audio is", "video": "videos are"}
_SENT: Final = {str: "a string", bool: "a boolean", dict: "an object", list: "an array", type(None): "null"}


class Unsupported(JsonSchema):
    """The schema of an unsupported field. `details`: see ApiError."""

    details: Mapping[str, object] = {}


def unsupported(*harmless: object, why: str = "") -> Unsupported:
    """Makes the schema of an unsupported field. The field must be null, empty or one of the values `harmless`. `why`
    continues the error message, so it begins with a comma."""
    return Unsupported(enum=[None, [], {}, *harmless], description=f"is not supported{why}")


def body(*needed: str, **fields: JsonSchema) -> JsonSchema:
    """Makes the schema of an object. Fields in `needed` and fields with the schema TEXT are required."""
    texts = [name for name, schema in fields.items() if schema is TEXT and name not in needed]
    return {"type": "object", "properties": fields, "required": [*needed, *texts]}


def optional(schema: JsonSchema, description: str = "") -> JsonSchema:
    return {**schema, "type": ["object", "null"], "description": description}


def tagged(tag: str, **forms: JsonSchema) -> dict[str, JsonSchema]:
    """Returns `forms`, each with a required field `tag` whose value is the form's name."""
    return {
        name: body(tag, *form["required"], **{tag: {"const": name}, **form["properties"]})
        for name, form in forms.items()
    }


def any_of(*schemas: JsonSchema, description: str = "") -> JsonSchema:
    return {"anyOf": [*schemas], **({"description": description} if description else {})}


def text_or(forms: Mapping[str, JsonSchema], *more: str, description: str = "") -> JsonSchema:
    """Makes the schema of a text or an array of `forms`. `more`: other allowed types, like "null"."""
    return {**array(any_of(*forms.values()), description), "type": ["string", "array", *more]}


def number(allowed: Range, description: str) -> JsonSchema:
    limits = {"minimum": allowed.low, "maximum": allowed.high}
    return {"type": ["number", "null"], **limits, "description": description}


def integer(low: int, high: int, description: str) -> JsonSchema:
    return {"type": ["integer", "null"], "minimum": low, "maximum": high, "description": description}


def flag(description: str, default: bool | None = False) -> JsonSchema:
    """Makes the schema of a boolean field. `default` None: the model or another field decides."""
    schema: JsonSchema = {"type": ["boolean", "null"], "description": description}
    return schema if default is None else schema | {"default": default}


def text(description: str = "", most: int = 0) -> JsonSchema:
    schema: JsonSchema = {"type": ["string", "null"], "description": description}
    return schema | {"maxLength": most} if most else schema


def word(*words: str, description: str = "") -> JsonSchema:
    return {"enum": [*words, None], "description": description}


def array(items: JsonSchema, description: str = "", most: int = MAX_ENTRIES) -> JsonSchema:
    return {"type": ["array", "null"], "items": items, "maxItems": most, "description": description}


class BodyFields:
    def __init__(
        self, values: Mapping[str, object], form: JsonSchema, where: str = "", outer: Self | None = None
    ) -> None:
        """Checks `values` by `form`. `where`: the prefix of names in errors. `outer`: the enclosing object. Raises
        ApiError."""
        self.values = values
        self._table: Mapping[str, JsonSchema] = form["properties"]
        self._where = where
        self._whole: BodyFields = self if outer is None else outer._whole
        self._read: dict[str, Any] = {}
        self._nested: dict[str, BodyFields] = {}
        #: `_ignored` and `_text_values` are used in the outermost object only.
        self._ignored: dict[str, None] = {}
        self._text_values = 0
        for key, value in values.items():
            if key in self._table and value is not None:
                self._read[key] = self._checked(key, value, self._table[key])
        for key in form["required"]:
            if values.get(key) is None:
                raise self.missing(key)
        self._check_rest([key for key in values if key not in self._table and values[key] is not None], form)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names of all ignored fields of the request, safe in a header."""
        return tuple(self._whole._ignored)

    def name(self, key: str) -> str:
        """Returns the full name of field `key`, like "messages[2].content"."""
        return f"{self._where}{key}"

    def get(self, key: str, default: Any = None) -> Any:
        self._table[key]  # raises KeyError for a field that is not in the table
        return self._read.get(key, default)

    def needed(self, key: str) -> str:
        value: str | None = self.get(key)
        if value is None:
            raise self.missing(key)
        return value

    def parsed(self, key: str) -> object:
        """Returns the field's value. JSON in a text is parsed. Raises ApiError."""
        value, whole = self.get(key), self._whole
        if not isinstance(value, str):
            return value
        data = value.encode("utf-8", "surrogatepass")
        try:
            found, whole._text_values = parse(data, MAX_TEXT_VALUES, whole._text_values, "surrogatepass")
        except Excessive as error:
            raise self.wrong(key, str(error)) from None
        except ValueError:
            return value
        return found

    def nested(self, key: str) -> "BodyFields":
        """Returns the object in field `key`; if it is missing, an empty object."""
        empty = {"properties": self._table[key]["properties"], "required": ()}
        return self._nested.get(key) or BodyFields({}, empty, f"{self.name(key)}.", self)

    def inner(self, value: object, key: str, form: JsonSchema) -> "BodyFields":
        if not isinstance(value, dict):
            raise self.wrong_type(key, "an object", value)
        return BodyFields(value, form, f"{self.name(key)}.", self)

    def entries(self, key: str) -> Iterator[tuple[str, dict[str, object]]]:
        for index, item in enumerate(self.get(key, ())):
            if not isinstance(item, dict):
                raise self.wrong_type(f"{key}[{index}]", "an object", item)
            yield f"{key}[{index}]", item

    def kind(
        self, value: object, key: str, forms: Mapping[str, JsonSchema], tag: str = "type", usual: str = ""
    ) -> "tuple[str, BodyFields]":
        """Returns (name of the form, fields) of the object `value`. The field `tag` names the form; `usual` is the
        default. Raises ApiError."""
        if not isinstance(value, dict):
            raise self.wrong_type(key, "an object", value)
        found = value.get(tag) or usual
        if not found:
            raise self.missing(f"{key}.{tag}")
        if not isinstance(found, str) or found not in forms:
            told = str(found)[:_SHOWN]
            medium = next((f": {words} not supported" for part, words in _MEDIA.items() if part in told), "")
            raise self.wrong(f"{key}.{tag}", f"must be {_listed(forms)}{medium}", "unsupported_value")
        return found, self.inner(value, key, forms[found])

    def kinds(
        self, key: str, forms: Mapping[str, JsonSchema], tag: str = "type"
    ) -> "list[tuple[str, BodyFields]]":
        return [self.kind(item, where, forms, tag) for where, item in self.entries(key)]

    def ignore_within(self, key: str, place: str) -> None:
        room = _SHOWN - len(f"{self.name(key)}..")
        if len(place) >= room:
            place = f"..{place[max(0, len(place) - room + 1) :].partition('.')[2]}"
        self.ignore(f"{key}.{place}")

    def ignore(self, key: str) -> None:
        """Reports the field `key`, or a part of it, as ignored."""
        ignored = self._whole._ignored
        if len(ignored) < 32:
            name = _INDEX.sub("[]", self.name(key)[:_SHOWN])
            # An empty last name would end the header with a blank, which is not allowed.
            ignored[_STRANGE.sub("?", name) or "?"] = None

    def wrong(self, key: str, why: str, code: str = "invalid_value") -> ApiError:
        return refused(f"'{self.name(key)}' {why}", self.name(key), code)

    def missing(self, key: str) -> ApiError:
        return self.wrong(key, "is missing", "missing_required_parameter")

    def wrong_type(self, key: str, wanted: str, value: object) -> ApiError:
        return self.wrong(key, f"must be {wanted}, not {_SENT.get(type(value), 'a number')}", "invalid_type")

    def out_of_range(self, key: str, value: float, low: float, high: float) -> ApiError:
        shown = str(value) if abs(value) < 10**20 else "a number of many digits"
        return self.wrong(key, f"is {shown}: it must be from {low} to {high}")

    def _checked(self, key: str, value: Any, schema: JsonSchema) -> Any:
        """Checks the value's type and limits, but not the items of an array. Raises ApiError."""
        if "enum" in schema and value not in schema["enum"]:
            if not isinstance(schema, Unsupported):
                raise self.wrong(key, f"must be {_listed(one for one in schema['enum'] if one is not None)}")
            error = self.wrong(key, schema["description"], "unsupported_parameter")
            error.details = dict(schema.details)
            raise error
        given = schema.get("type", ())
        kinds = [kind for kind in ([given] if isinstance(given, str) else given) if kind != "null"]
        if kinds and not any(_is_of(value, kind) for kind in kinds):
            raise self.wrong_type(key, " or ".join(_TYPES[kind][0] for kind in kinds), value)
        if "minimum" in schema and not schema["minimum"] <= value <= schema["maximum"]:
            raise self.out_of_range(key, value, schema["minimum"], schema["maximum"])
        if "maxLength" in schema and not schema.get("minLength", 0) <= len(value) <= schema["maxLength"]:
            raise self.wrong(
                key, f"must have {schema.get('minLength', 0)} to {schema['maxLength']} characters"
            )
        if isinstance(value, list) and len(value) > schema.get("maxItems", len(value)):
            raise self.wrong(key, f"has {len(value)} entries: at most {schema['maxItems']}")
        if "properties" in schema:
            self._nested[key] = self.inner(value, key, schema)
        return float(value) if kinds == ["number"] else int(value) if kinds == ["integer"] else value

    def _check_rest(self, unknown: Sequence[str], form: JsonSchema) -> None:
        if len(unknown) > _MOST_UNKNOWN:
            why = f"{len(unknown)} fields are not known: at most {_MOST_UNKNOWN} may be"
            raise refused(why, unknown[0][:_SHOWN])
        for key in unknown:
            shown = self.name(key)[:_SHOWN]
            meant = next((known for known in sorted(self._table) if _is_slip(key, known)), None)
            if form.get("additionalProperties") is False:
                why = f"Unrecognized request argument supplied: {shown!r}"
            elif meant is not None:
                why = f"'{shown}' is not known: is '{self.name(meant)}' meant?"
            else:
                self.ignore(key)
                continue
            raise refused(why, shown, "unknown_parameter")


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    return {IGNORED: ", ".join(names)} if names else {}


def _listed(words: Iterable[str]) -> str:
    *others, last = (f"'{one}'" for one in words)
    return f"{', '.join(others)} or {last}" if others else last


def _is_of(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()  # some languages have floats only
    return isinstance(value, _TYPES[kind][1])


def _is_slip(given: str, known: str) -> bool:
    """Whether the names differ by one letter or two swapped neighbours."""
    if len(known) < _NEAR_LENGTH or abs(len(given) - len(known)) > 1:
        return False
    begin = 0
    while begin < min(len(given), len(known)) and given[begin] == known[begin]:
        begin += 1
    one, other = given[begin:], known[begin:]
    swapped = one[1:2] + one[:1] + one[2:]
    return one[1:] in (other[1:], other) or one == other[1:] or (len(one) > 1 and swapped == other)
