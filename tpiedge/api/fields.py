"""Reads the fields of the JSON objects that clients send, by the same tables that /openapi.json shows.

null is the same as no field. A field that is not in the table, or that has no effect, is taken and told back as
ignored, as other servers of these APIs have more fields. One that is a slip of the pen from a field of the table is
refused: a misspelt limit that is silently ignored is worse than an error.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tpiedge.api.body import Excessive, parse_text
from tpiedge.api.errors import ApiError, refused
from tpiedge.api.tables import MAX_ENTRIES, JsonSchema, Unsupported, Vain

IGNORED: Final = "x-ignored-fields"
"""The header of an answer that lists the fields of the request that have no effect."""
MAX_TEXT_VALUES: Final = 65_536
"""Of JSON in the texts of one request, all of them together."""

_NEAR_LENGTH: Final = 6
"""A shorter name may be one edit from another and mean something else, as top_k and top_p."""
_MOST_UNKNOWN: Final = 256
_INDEX: Final = re.compile(r"\[\d+\]")
_STRANGE: Final = re.compile(r"[^\w.$\[\]-]", re.ASCII)
_SHOWN: Final = 64
_NAMES: Final = {
    "string": "a string", "boolean": "true or false", "integer": "an integer", "number": "a number",
    "object": "an object", "array": "an array",
}  # fmt: skip


@dataclass(slots=True)
class _RequestNotes:
    """What the objects of one request have in common: the fields without an effect, and how many values the JSON in its
    texts has so far."""

    ignored: dict[str, None] = field(default_factory=dict)
    text_values: int = 0


class BodyFields:
    """An object that a client sent, all fields of which are what the table `form` says.

    `ignored`: names of fields that have no effect, in the order in which they were found, with those of all nested
    objects; without indices, and with nothing that could not stand in a header.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        form: JsonSchema | None = None,
        where: str = "",
        request: _RequestNotes | None = None,
    ) -> None:
        """Without a `form` nothing of the fields is checked. Raises ApiError."""
        self._values = values
        self._table: Mapping[str, JsonSchema] = defaultdict(dict) if form is None else form["properties"]
        self._where = where
        self._request = request or _RequestNotes()
        self._nested: dict[str, BodyFields] = {}
        if form is None:
            return
        for key, value in values.items():
            if key in self._table and value is not None:
                self._check(key, value, self._table[key])
        for key in form["required"]:
            if values.get(key) is None:
                raise self.missing(key)
        self._overlook([key for key in values if key not in self._table], form)

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(self._request.ignored)

    def name(self, key: str) -> str:
        """`key` as an error names it: "messages[2].content"."""
        return f"{self._where}{key}"

    def raw(self, key: str) -> Any:
        """The value as it came; of the table's type, where that names one."""
        self._table[key]  # a field that is read and not in the table is a defect
        return self._values.get(key)

    def integer(self, key: str) -> int | None:
        value = self.raw(key)
        return None if value is None else int(value)

    def number(self, key: str, default: float) -> float:
        value = self.raw(key)
        return default if value is None else float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw(key)
        return default if value is None else bool(value)

    def text(self, key: str) -> str | None:
        value: str | None = self.raw(key)
        return value

    def needed(self, key: str) -> str:
        """A text that the table requires, or one that something else does. Raises ApiError."""
        value = self.text(key)
        if value is None:
            raise self.missing(key)
        return value

    def parsed(self, key: str) -> object:
        """The value that the text of the field is, where it is JSON; else the field as it is. Raises ApiError for more
        of it than a request may have."""
        value = self.raw(key)
        if not isinstance(value, str):
            return value
        try:
            found, self._request.text_values = parse_text(value, MAX_TEXT_VALUES, self._request.text_values)
        except Excessive as error:
            raise refused(f"'{self.name(key)}' {error}", self.name(key)) from None
        except ValueError:
            return value
        return found

    def nested(self, key: str) -> "BodyFields | None":
        """The object in a field whose table has one of its own."""
        self._table[key]
        return self._nested.get(key)

    def within(self, key: str) -> "BodyFields":
        """As `nested`, of a field that the table requires."""
        return self._nested[key]

    def inner(self, value: object, key: str, form: JsonSchema) -> "BodyFields":
        """An object that is found somewhere under `key`. Raises ApiError."""
        if not isinstance(value, dict):
            raise self.wrong_type(key, "an object", value)
        return BodyFields(value, form, f"{self.name(key)}.", self._request)

    def entries(self, key: str) -> Iterator[tuple[str, dict[str, object]]]:
        """The objects of an array, with the names of their places. Raises ApiError."""
        value = self.raw(key)
        if value is not None and not isinstance(value, list):
            raise self.wrong_type(key, "an array", value)
        self._check_size(key, value or [], MAX_ENTRIES)
        for index, item in enumerate(value or ()):
            if not isinstance(item, dict):
                raise self.wrong_type(f"{key}[{index}]", "an object", item)
            yield f"{key}[{index}]", item

    def objects(self, key: str, form: JsonSchema) -> "list[BodyFields]":
        """As `entries`, read by the table `form`."""
        return [self.inner(item, where, form) for where, item in self.entries(key)]

    def kind(
        self, value: object, key: str, forms: Mapping[str, JsonSchema], tag: str = "type", usual: str = ""
    ) -> "tuple[str, BodyFields]":
        """An object under `key` that is one of several, as its field `tag` says: which, and its fields. Raises
        ApiError."""
        if not isinstance(value, dict):
            raise self.wrong_type(key, "an object", value)
        found = value.get(tag) or usual
        if not found:
            raise self.missing(f"{key}.{tag}")
        if not isinstance(found, str) or found not in forms:
            where = f"{self.name(key)}.{tag}"
            raise refused(f"'{where}' must be {_listed(forms)}", where, "unsupported_value")
        return found, self.inner(value, key, forms[found])

    def kinds(
        self, key: str, forms: Mapping[str, JsonSchema], tag: str = "type", usual: str = ""
    ) -> "list[tuple[str, BodyFields]]":
        """As `kind`, of each object of an array."""
        return [self.kind(item, where, forms, tag, usual) for where, item in self.entries(key)]

    def leave_out(self, key: str, place: str) -> None:
        """Notes that what stands at that place within the field has no effect."""
        name = self.name(key)
        room = _SHOWN - len(f"{name}..")
        within = (
            place if len(place) < room else f"..{place[max(0, len(place) - room + 1) :].partition('.')[2]}"
        )
        self._note(f"{name}.{within}")

    def note(self, key: str) -> None:
        """Notes that something of the object has no effect, which need not be a field."""
        self._note(self.name(key))

    def missing(self, key: str) -> ApiError:
        return refused(f"'{self.name(key)}' is missing", self.name(key), "missing_required_parameter")

    def wrong_type(self, key: str, wanted: str, value: object) -> ApiError:
        got = _type_name(value)
        return refused(f"'{self.name(key)}' must be {wanted}, not {got}", self.name(key), "invalid_type")

    def _check(self, key: str, value: Any, schema: JsonSchema) -> None:
        """Raises ApiError where the value is not what the schema allows, as far as that is simple."""
        name = self.name(key)
        if isinstance(schema, Vain):
            self._note(name)
        elif isinstance(schema, Unsupported) and value not in schema["enum"]:
            raise refused(f"'{name}' {schema['description']}", name, "unsupported_parameter")
        elif "enum" in schema and not isinstance(schema, Unsupported) and value not in schema["enum"]:
            raise refused(
                f"'{name}' must be {_listed(one for one in schema['enum'] if one is not None)}", name
            )
        given = schema.get("type", ())
        kinds = [kind for kind in ([given] if isinstance(given, str) else given) if kind != "null"]
        if kinds and not any(_is_of(value, kind) for kind in kinds):
            raise self.wrong_type(key, " or ".join(_NAMES[kind] for kind in kinds), value)
        if "minimum" in schema and not schema["minimum"] <= value <= schema["maximum"]:
            raise self.out_of_range(key, value, schema["minimum"], schema["maximum"])
        if "maxLength" in schema and not schema.get("minLength", 0) <= len(value) <= schema["maxLength"]:
            low, high = schema.get("minLength", 0), schema["maxLength"]
            raise refused(f"'{name}' must have {low} to {high} characters", name)
        if "maxItems" in schema and isinstance(value, list):
            self._check_size(key, value, schema["maxItems"])
        if "properties" in schema:
            self._nested[key] = self.inner(value, key, schema)

    def _check_size(self, key: str, value: Sequence[object], most: int) -> None:
        if len(value) > most:
            raise refused(f"'{self.name(key)}' has {len(value)} entries: at most {most}", self.name(key))

    def out_of_range(self, key: str, value: float, low: float, high: float) -> ApiError:
        shown = str(value) if abs(value) < 10**20 else "a number of many digits"
        return refused(f"'{self.name(key)}' is {shown}: it must be from {low} to {high}", self.name(key))

    def _overlook(self, unknown: Sequence[str], form: JsonSchema) -> None:
        """Notes fields that are not in the table, or refuses them."""
        if len(unknown) > _MOST_UNKNOWN:
            raise refused(
                f"{len(unknown)} fields are not known: at most {_MOST_UNKNOWN} may be", unknown[0][:_SHOWN]
            )
        for key in unknown:
            shown = self.name(key)[:_SHOWN]
            if form.get("additionalProperties") is False:
                raise refused(
                    f"Unrecognized request argument supplied: {shown!r}", shown, "unknown_parameter"
                )
            meant = next((known for known in sorted(self._table) if _is_slip(key, known)), None)
            if meant is not None:
                raise refused(
                    f"'{shown}' is not known: is '{self.name(meant)}' meant?", shown, "unknown_parameter"
                )
            self._note(self.name(key))

    def _note(self, name: str) -> None:
        ignored = self._request.ignored
        if len(ignored) < 32:
            name = _INDEX.sub("[]", name[:_SHOWN])
            # The header would end with a blank, which none may, where the last name is empty.
            ignored[_STRANGE.sub("?", name) or "?"] = None


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """What says to a client that these fields have no effect."""
    return {IGNORED: ", ".join(names)} if names else {}


def _listed(words: Any) -> str:
    """'a', 'b' or 'c'."""
    *others, last = (f"'{one}'" for one in words)
    return f"{', '.join(others)} or {last}" if others else last


def _is_of(value: object, kind: str) -> bool:
    match kind, value:
        case ("boolean", bool()) | ("string", str()) | ("object", dict()) | ("array", list()):
            return True
        case (("integer" | "number"), bool()):
            return False
        case "integer", float():
            return value.is_integer()  # as JSON of languages that know no other numbers has it
        case "integer", int():
            return True
        case "number", int() | float():
            return True
    return False


def _is_slip(given: str, known: str) -> bool:
    """Whether one letter more, less or other, or two that changed places, makes one of the other."""
    if len(known) < _NEAR_LENGTH or abs(len(given) - len(known)) > 1:
        return False
    begin = 0
    while begin < min(len(given), len(known)) and given[begin] == known[begin]:
        begin += 1
    one, other = given[begin:], known[begin:]
    return (
        one[1:] == other[1:]
        or one[1:] == other
        or one == other[1:]
        or (one[1:2] + one[:1] + one[2:] == other and len(one) > 1)
    )


def _type_name(value: object) -> str:
    names = {str: "a string", bool: "a boolean", dict: "an object", list: "an array", type(None): "null"}
    return names.get(type(value), "a number")
