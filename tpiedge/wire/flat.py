"""The short form of the messages that travel once per block: integers of fixed width, then a tensor's header.

    0xC1, PROTOCOL, tag | the integers, little-endian, as wide as their bounds | dtype, dimensions, lengths | zeros

FLAT_BYTES in all, so that the tensor can follow at once, aligned, in the same frame. A MessagePack message never
begins with 0xC1. Reading and writing take one call of `struct` each, which checks the bounds on the way; most
tensor headers of a run are the same few, and are remembered by their exact bytes.
"""

import struct
from dataclasses import fields
from functools import cache, lru_cache
from operator import attrgetter
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from tpiedge.wire.fields import Range
from tpiedge.wire.limits import MAX_DIMENSIONS
from tpiedge.wire.schema import schema_of
from tpiedge.wire.tensors import DType, TensorHeader

FLAT_MARK: Final = 0xC1
FLAT_BYTES: Final = 64
_CODES: Final[dict[DType, int]] = {"f32": 1, "bf16": 2, "i32": 4, "i64": 5, "u8": 8}
_DTYPES: Final[dict[int, DType]] = {code: dtype for dtype, code in _CODES.items()}
_NO_TENSOR: Final = bytes(2)
_WIDTHS: Final = ((2**8, "B"), (2**32, "I"), (2**64, "Q"))
_ONLY_INT: Final = {int}


class FlatForm:
    """How objects of `cls` look. Both directions raise ValueError for what the fields do not allow."""

    def __init__(self, cls: type, bounds: dict[str, int], optional: bool) -> None:
        self._cls: Any = cls
        self._optional = optional
        self._values_of = attrgetter(*bounds)
        self._layout = struct.Struct("<BBB" + "".join(_width(high) for high in bounds.values()))
        # Bounds that the width alone does not keep: (position, name, highest value).
        self._narrow = [
            (3 + index, name, high)
            for index, (name, high) in enumerate(bounds.items())
            if all(high + 1 != limit for limit, _ in _WIDTHS)
        ]

    def write(self, protocol: int, tag: int, message: Any) -> bytes:
        values = self._values_of(message)
        header = message.tensor
        if self._allows(values, header):
            try:
                written = self._layout.pack(FLAT_MARK, protocol, tag, *values) + _written(header)
                return written.ljust(FLAT_BYTES, b"\0")
            except (struct.error, LookupError, TypeError):
                pass
        # The schema knows how to say what is wrong.
        schema_of(self._cls).write(message)
        raise ValueError(f"{self._cls.__name__} does not fit its short form")

    def _allows(self, values: tuple[Any, ...], header: Any) -> bool:
        """What `struct` would let through: bool for int, too large a value where the width has room for it."""
        if set(map(type, values)) != _ONLY_INT:
            return False
        for at, _, high in self._narrow:
            if values[at - 3] > high:
                return False
        if header is None:
            return self._optional
        return type(header) is TensorHeader and set(map(type, header.shape)) <= _ONLY_INT

    def read(self, data: bytes | bytearray | memoryview) -> Any:
        layout = self._layout
        if len(data) != FLAT_BYTES:
            raise ValueError(f"{self._cls.__name__}: {len(data)} bytes, not {FLAT_BYTES}")
        values = layout.unpack_from(data)
        for at, name, high in self._narrow:
            if values[at] > high:
                raise ValueError(f"{self._cls.__name__}.{name}: {values[at]} is not an integer in 0..{high}")
        header = _read(bytes(data[layout.size :]))
        if header is None and not self._optional:
            raise ValueError(f"{self._cls.__name__}.tensor: is missing")
        return self._cls(*values[3:], header)


@cache
def flat_form(cls: type) -> FlatForm | None:
    """The short form of a class whose fields are unsigned integers and then `tensor`; None for any other."""
    hints = get_type_hints(cls, include_extras=True)
    *names, last = (field.name for field in fields(cls))
    bounds = {name: high for name in names if (high := _highest(hints[name])) is not None}
    if last != "tensor" or len(bounds) != len(names):
        return None
    return FlatForm(cls, bounds, hints[last] != TensorHeader)


def _highest(hint: Any) -> int | None:
    """The upper bound of an unsigned integer; None for another type."""
    if get_origin(hint) is not Annotated:
        return None
    kind, bound, *_ = get_args(hint)
    unsigned = kind is int and isinstance(bound, Range) and bound.low == 0
    return int(bound.high) if unsigned else None


def _width(high: int) -> str:
    return next(code for limit, code in _WIDTHS if high < limit)


@lru_cache(maxsize=64)
def _written(header: TensorHeader | None) -> bytes:
    if header is None:
        return _NO_TENSOR
    shape = header.shape
    if len(shape) > MAX_DIMENSIONS:
        raise TypeError(f"more than {MAX_DIMENSIONS} dimensions")
    return struct.pack(f"<BB{len(shape)}I", _CODES[header.dtype], len(shape), *shape)


@lru_cache(maxsize=64)
def _read(data: bytes) -> TensorHeader | None:
    """The header at the beginning of `data`, which ends in zeros."""
    if not any(data):
        return None
    dtype = _DTYPES.get(data[0])
    if dtype is None:
        raise ValueError(f"TensorHeader.dtype: is none of {', '.join(_CODES)}")
    if data[1] > MAX_DIMENSIONS or any(data[2 + 4 * data[1] :]):
        raise ValueError(f"TensorHeader.shape: not at most {MAX_DIMENSIONS} lengths and then zeros")
    return TensorHeader(dtype, struct.unpack_from(f"<{data[1]}I", data, 2))
