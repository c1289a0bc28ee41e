"""Typed, bounded reads of one JSON object from an untrusted file: a failure names file and field."""

from collections.abc import Mapping
from typing import NoReturn

from tpiedge.errors import UserError
from tpiedge.sanitise import quote


class ConfigFields:
    """The fields of `values`; `where` names the file in messages.

    A field that is missing or null takes the default; without a default that is an error. Every method raises
    UserError.
    """

    def __init__(self, where: str, values: Mapping[str, object]) -> None:
        self.where = where
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def names(self) -> tuple[str, ...]:
        """All keys, in the order of the file."""
        return tuple(self._values)

    def raw(self, key: str) -> object:
        """The value as it stands, None if it is missing."""
        return self._values.get(key)

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise for `key`."""
        raise UserError(f"{self.where}: {key} {problem}")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(key, f"is {quote(value)}, not a whole number from {low} to {high}")
        return value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        return None if self.raw(key) is None else self.integer(key, low, high)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number of [low, high]."""
        value = self._value(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(key, f"is {quote(value)}, not a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        return None if self.raw(key) is None else self.number(key, low, high)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.refuse(key, f"is {quote(value)}, not true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            self.refuse(key, f"is {quote(value)}, not a text")
        return value

    def fields(self, key: str) -> "ConfigFields":
        """The object under `key`; empty if it is missing or null."""
        value = self.raw(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.refuse(key, f"is {quote(value)}, not an object")
        return ConfigFields(f"{self.where}, {key}", value)

    def sequence(self, key: str, limit: int) -> list[object]:
        """The list under `key`, of `limit` entries at most."""
        value = self._value(key, None)
        if not isinstance(value, list) or len(value) > limit:
            self.refuse(key, f"is {quote(value)}, not a list of at most {limit} entries")
        return value

    def _value(self, key: str, default: object) -> object:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            self.refuse(key, "is missing")
        return value
