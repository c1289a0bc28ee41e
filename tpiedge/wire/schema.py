"""Type hints of message classes turned, once per class, into checks of every field in both directions.

A message becomes the tuple of its fields, nested classes likewise. What a hint does not allow raises
ValueError (`codec.py` makes it a ProtocolError); a hint without a bound raises TypeError when the class is
first used.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tpiedge.wire.fields import MaxBytes, MaxItems, MaxLength, Packed, Range


def packing(bound: Packed, kinds: tuple[type, ...]) -> tuple[Callable[[Any], bytes], Callable[[Any], Any]]:
    """(writer, reader) of a tuple whose elements are a number of `kinds[0]`, or tuples of `kinds`.

    Both raise ValueError for anything else.
    """
    layout = struct.Struct(bound.layout)
    single = len(kinds) == 1

    def write(value: Any) -> bytes:
        if type(value) is not tuple or len(value) > bound.count:
            raise ValueError(f"not a tuple of at most {bound.count} elements")
        _check_columns([value] if single else _columns(value, len(kinds)), kinds)
        try:
            if single:
                return struct.pack(_repeated(layout, len(value)), *value)
            return b"".join(layout.pack(*item) for item in value)
        except struct.error as error:
            raise ValueError(str(error)) from None

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not bytes or len(value) % layout.size or len(value) > bound.count * layout.size:
            raise ValueError(f"not a string of at most {bound.count} elements of {layout.size} bytes")
        if single:
            return struct.unpack(_repeated(layout, len(value) // layout.size), value)
        items = tuple(layout.iter_unpack(value))
        _check_columns(_columns(items, len(kinds)), kinds)
        return items

    return write, read


def _repeated(layout: struct.Struct, count: int) -> str:
    return f"{layout.format[0]}{count}{layout.format[1:]}"


def _columns(items: tuple[Any, ...], width: int) -> list[tuple[Any, ...]]:
    if any(type(item) is not tuple or len(item) != width for item in items):
        raise ValueError(f"an element is not a tuple of {width}")
    return list(zip(*items, strict=True))


def _check_columns(columns: list[tuple[Any, ...]], kinds: tuple[type, ...]) -> None:
    for kind, column in zip(kinds, columns, strict=False):
        allowed = {int, float} if kind is float else {kind}
        if not set(map(type, column)) <= allowed or not all(map(math.isfinite, column)):
            raise ValueError(f"not finite numbers of type {kind.__name__}")


FieldCheck = Callable[[Any], Any]

_ANY = Range(-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Schema:
    """How objects of `cls` look on the wire: a tuple, one element per field."""

    cls: type
    names: tuple[str, ...]
    values_of: Callable[[Any], tuple[Any, ...]]
    writers: tuple[FieldCheck, ...]
    readers: tuple[FieldCheck, ...]

    def write(self, value: Any) -> tuple[Any, ...]:
        if type(value) is not self.cls:
            raise ValueError(f"not a {self.cls.__name__}: {_short(value)}")
        return self._apply(self.writers, self.values_of(value))

    def read(self, wire: Any) -> Any:
        if type(wire) is not tuple or len(wire) != len(self.names):
            raise ValueError(f"not the {len(self.names)} fields of {self.cls.__name__}: {_short(wire)}")
        return self.cls(*self._apply(self.readers, wire))

    def _apply(self, checks: tuple[FieldCheck, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            return tuple([check(value) for check, value in zip(checks, values, strict=True)])
        except ValueError:
            self._blame(checks, values)
            raise

    def _blame(self, checks: tuple[FieldCheck, ...], values: tuple[Any, ...]) -> None:
        """Raise the error of the first bad value, with the field's name."""
        for name, check, value in zip(self.names, checks, values, strict=True):
            try:
                check(value)
            except ValueError as error:
                raise ValueError(f"{self.cls.__name__}.{name}: {error}") from None


@cache
def schema_of(cls: type) -> Schema:
    """The schema of a frozen dataclass."""
    hints = get_type_hints(cls, include_extras=True)
    names = tuple(field.name for field in fields(cls))
    checks = [_checks(hints[name]) for name in names]
    values_of = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
    return Schema(
        cls, names, values_of, tuple(write for write, _ in checks), tuple(read for _, read in checks)
    )


def _checks(hint: Any) -> tuple[FieldCheck, FieldCheck]:
    """(writer, reader) of a type hint."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _bounded(arguments[0], arguments[1])
    if origin is Literal:
        return _same(_member(frozenset(arguments)))
    if origin is tuple and Ellipsis not in arguments:
        writers, readers = zip(*map(_checks, arguments), strict=True)
        return _fixed(writers), _fixed(readers)
    if origin in (Union, UnionType) and len(arguments) == 2 and arguments[1] is NoneType:
        write, read = _checks(arguments[0])
        return _optional(write), _optional(read)
    if hint is bool:
        return _same(_boolean)
    if hint is float:
        return _real(_ANY, coerce=True), _real(_ANY)
    if isinstance(hint, type) and is_dataclass(hint):
        return schema_of(hint).write, schema_of(hint).read
    raise TypeError(f"a field of type {hint} has no bounds")


def _bounded(hint: Any, bound: Any) -> tuple[FieldCheck, FieldCheck]:
    if hint is int and isinstance(bound, Range):
        return _same(_integer(int(bound.low), int(bound.high)))
    if hint is float and isinstance(bound, Range):
        return _real(bound, coerce=True), _real(bound)
    if hint is str and isinstance(bound, MaxLength):
        return _same(_text(bound.count))
    if hint is bytes and isinstance(bound, MaxBytes):
        return _same(_bytes(bound.count))
    if get_origin(hint) is tuple and isinstance(bound, Packed):
        return packing(bound, get_args(get_args(hint)[0]) or get_args(hint)[:1])
    if get_origin(hint) is tuple and isinstance(bound, MaxItems):
        write, read = _checks(get_args(hint)[0])
        return _many(write, bound.count), _many(read, bound.count)
    raise TypeError(f"{bound} is no bound of {hint}")


def _same(check: FieldCheck) -> tuple[FieldCheck, FieldCheck]:
    return check, check


# The checks are closures and test the good case first: they run several times per message of the tensor
# plane.


def _integer(low: int, high: int) -> FieldCheck:
    def check(value: Any) -> int:
        # type() is exact: bool is an int to isinstance, not on the wire.
        if type(value) is int and low <= value <= high:
            return value
        raise ValueError(f"{_short(value)} is not an integer in {low}..{high}")

    return check


def _real(bound: Range, coerce: bool = False) -> FieldCheck:
    """With `coerce` an int is taken for a float: a sender may write 1 for 1.0."""
    low, high, or_zero = bound.low, bound.high, bound.or_zero

    def check(value: Any) -> float:
        number = (type(value) is float and math.isfinite(value)) or (coerce and type(value) is int)
        if number and (low <= value <= high or (or_zero and value == 0)):
            return float(value)
        raise ValueError(
            f"{_short(value)} is not a finite number in {low}..{high}{' or 0' if or_zero else ''}"
        )

    return check


def _boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise ValueError(f"{_short(value)} is not a boolean")


def _text(limit: int) -> FieldCheck:
    def check(value: Any) -> str:
        if type(value) is str and len(value) <= limit:
            return value
        raise ValueError(f"{_short(value)} is not a text of at most {limit} characters")

    return check


def _bytes(limit: int) -> FieldCheck:
    def check(value: Any) -> bytes:
        if type(value) is bytes and len(value) <= limit:
            return value
        raise ValueError(f"{_short(value)} is not at most {limit} bytes")

    return check


def _member(allowed: frozenset[str]) -> FieldCheck:
    def check(value: Any) -> str:
        if type(value) is str and value in allowed:
            return value
        raise ValueError(f"{_short(value)} is none of {', '.join(sorted(allowed))}")

    return check


def _optional(inner: FieldCheck) -> FieldCheck:
    def check(value: Any) -> Any:
        return None if value is None else inner(value)

    return check


def _fixed(inner: tuple[FieldCheck, ...]) -> FieldCheck:
    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is tuple and len(value) == len(inner):
            return tuple([one(item) for one, item in zip(inner, value, strict=True)])
        raise ValueError(f"{_short(value)} is not a tuple of {len(inner)}")

    return check


def _many(inner: FieldCheck, limit: int) -> FieldCheck:
    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is tuple and len(value) <= limit:
            return tuple([inner(item) for item in value])
        raise ValueError(f"{_short(value)} is not a tuple of at most {limit} elements")

    return check


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, int | float | bool | NoneType) else type(value).__name__
    return text if len(text) < 40 else text[:37] + "..."
