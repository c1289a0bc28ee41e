"""The fields of a JSON object, read one by one: each has a type, a range and a default, and null is the default."""

from collections.abc import Mapping, Sequence

from tpiedge.api.errors import ApiError, refused
from tpiedge.wire.fields import Range

__all__ = ["BodyFields"]


class BodyFields:
    """Knows which keys were asked for, so that `finish` can refuse the others."""

    def __init__(self, values: Mapping[str, object], where: str = "") -> None:
        self._values = values
        self._where = where
        self._known: set[str] = set()

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

    def nested(self, key: str) -> "BodyFields | None":
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong_type(key, "an object", value)
        return BodyFields(value, f"{self.name(key)}.")

    def items(self) -> Mapping[str, object]:
        """All of the object, for one whose keys are data."""
        self._known.update(self._values)
        return self._values

    def ignore(self, keys: Sequence[str]) -> None:
        """Keys that may have any value, without an effect."""
        self._known.update(keys)

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
                shown = self.name(key)[:64]
                raise refused(
                    f"Unrecognized request argument supplied: {shown!r}", shown, "unknown_parameter"
                )

    def wrong_type(self, key: str, wanted: str, value: object) -> ApiError:
        got = _type_name(value)
        return refused(f"'{self.name(key)}' must be {wanted}, not {got}", self.name(key), "invalid_type")

    def _in_range(self, key: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            shown = str(value) if abs(value) < 10**20 else "a number of many digits"
            raise refused(f"'{self.name(key)}' is {shown}: it must be from {low} to {high}", self.name(key))


def _type_name(value: object) -> str:
    names = {str: "a string", bool: "a boolean", dict: "an object", list: "an array", type(None): "null"}
    return names.get(type(value), "a number")
