"""Long tuples of numbers as one binary string (see `fields.Packed`)."""

import math
import struct
from collections.abc import Callable
from typing import Any

from tpiedge.wire.fields import Packed


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
