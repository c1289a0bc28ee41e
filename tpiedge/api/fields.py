"""The fields of a JSON object, read one by one: each has a type, a range and a default, and null is the default."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tpiedge.api.bounded_json import Excessive, parse_text
from tpiedge.api.errors import ApiError, refused
from tpiedge.wire.fields import Range

MAX_TEXT_VALUES: Final = 65_536
"""Of JSON in the texts of one request, all of them together."""

_NEAR_LENGTH: Final = 6
"""A shorter name may be one edit from another and mean something else, as top_k and top_p."""
_MOST_IGNORED: Final = 32
_MOST_UNKNOWN: Final = 256
_INDEX: Final = re.compile(r"\[\d+\]")
_STRANGE: Final = re.compile(r"[^\w.$\[\]-]", re.ASCII)
_SHOWN: Final = 64


@dataclass(slots=True)
class _RequestNotes:
    """What the objects of one request have in common: the fields without an effect, and how many values the JSON in its
    texts has so far."""

    ignored: dict[str, None] = field(default_factory=dict)
    text_values: int = 0


class BodyFields:
    """Knows which keys were asked for, so that `finish` can refuse the others, or `overlook` note them.

    `ignored`: names of fields that have no effect, in the order in which they were found, with those of all nested
    objects; without indices, and with nothing that could not stand in a header.
    """

    def __init__(
        self, values: Mapping[str, object], where: str = "", request: _RequestNotes | None = None
    ) -> None:
        self._values = values
        self._where = where
        self._known: set[str] = set()
        self._request = request or _RequestNotes()

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(self._request.ignored)

    def name(self, key: str) -> str:
        """`key` as an error names it: "messages[2].content"."""
        return f"{self._where}{key}"

    def raw(self, key: str) -> object:
        self._known.add(key)
        return self._values.get(key)

    def integer(self, key: str, default: int | None, low: int, high: int) -> int | None:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # as JSON of languages that know no other numbers has it
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong_type(key, "an integer", value)
        self._in_range(key, value, low, high)
        return value

    def number(self, key: str, default: float, allowed: Range) -> float:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong_type(key, "a number", value)
        self._in_range(key, value, allowed.low, allowed.high)
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong_type(key, "true or false", value)
        return value

    def text(self, key: str) -> str | None:
        value = self.raw(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong_type(key, "a string", value)
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
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong_type(key, "an object", value)
        return self.inner(value, key)

    def inner(self, value: Mapping[str, object], key: str) -> "BodyFields":
        """Of an object that is found somewhere under `key`."""
        return BodyFields(value, f"{self.name(key)}.", self._request)

    def items(self) -> Mapping[str, object]:
        """All of the object, for one whose keys are data."""
        self._known.update(self._values)
        return self._values

    def ignore(self, keys: Sequence[str]) -> None:
        """Keys that may have any value, without an effect."""
        self._known.update(keys)
        for key in keys:
            if self._values.get(key) is not None:
                self._note(key)

    def leave_out(self, key: str, place: str) -> None:
        """Notes that what stands at that place within the field has no effect."""
        name = self.name(key)
        room = _SHOWN - len(f"{name}..")
        within = (
            place if len(place) < room else f"..{place[max(0, len(place) - room + 1) :].partition('.')[2]}"
        )
        self._note_name(f"{name}.{within}")

    def unsupported(self, keys: Sequence[str], *harmless: object) -> None:
        """Keys that are refused unless null, empty or one of the `harmless` values."""
        for key in keys:
            value = self.raw(key)
            if value is not None and value != [] and value != {} and value not in harmless:
                raise refused(f"'{self.name(key)}' is not supported", self.name(key), "unsupported_parameter")

    def finish(self) -> None:
        """Refuses the first key that was never read."""
        for key in self._values:
            if key not in self._known:
                shown = self.name(key)[:_SHOWN]
                raise refused(
                    f"Unrecognized request argument supplied: {shown!r}", shown, "unknown_parameter"
                )

    def overlook(self) -> None:
        """Notes keys that were never read as ignored, as other servers of this API have more of them. One that is a
        slip of the pen from a known key is refused: a misspelt limit that is silently ignored is worse than an
        error."""
        unknown = [key for key in self._values if key not in self._known]
        if len(unknown) > _MOST_UNKNOWN:
            raise refused(
                f"{len(unknown)} fields are not known: at most {_MOST_UNKNOWN} may be", unknown[0][:_SHOWN]
            )
        known_names = sorted(self._known)
        for key in unknown:
            meant = next((known for known in known_names if _is_slip(key, known)), None)
            if meant is not None:
                shown = self.name(key)[:_SHOWN]
                raise refused(
                    f"'{shown}' is not known: is '{self.name(meant)}' meant?", shown, "unknown_parameter"
                )
            self._note(key)

    def pass_over(self, name: str) -> None:
        """Notes something of the object that has no effect, by a `name` that need not be a key."""
        self._note(name)

    def _note(self, key: str) -> None:
        self._note_name(self.name(key))

    def _note_name(self, name: str) -> None:
        ignored = self._request.ignored
        if len(ignored) < _MOST_IGNORED:
            name = _INDEX.sub("[]", name[:_SHOWN])
            # The header would end with a blank, which none may, where the last name is empty.
            ignored[_STRANGE.sub("?", name) or "?"] = None

    def wrong_type(self, key: str, wanted: str, value: object) -> ApiError:
        got = _type_name(value)
        return refused(f"'{self.name(key)}' must be {wanted}, not {got}", self.name(key), "invalid_type")

    def _in_range(self, key: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            shown = str(value) if abs(value) < 10**20 else "a number of many digits"
            raise refused(f"'{self.name(key)}' is {shown}: it must be from {low} to {high}", self.name(key))


def needed(fields: BodyFields, key: str) -> str:
    """A text that must be there. Raises ApiError."""
    text = fields.text(key)
    if text is None:
        raise refused(f"'{fields.name(key)}' is missing", fields.name(key))
    return text


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
