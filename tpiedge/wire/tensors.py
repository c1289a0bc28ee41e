"""Tensors on the wire: the header inside a message, the raw bytes behind it."""

from collections.abc import Sequence
from math import prod
from typing import Literal

from msgspec import Struct

from tpiedge.errors import ProtocolError
from tpiedge.wire.fields import WirePrecision
from tpiedge.wire.limits import MAX_TENSOR_BYTES

INT8_GROUP = 64
"""Elements of a row that share an f32 scale where they travel as int8; a row's last group may be short."""

SummandPrecision = WirePrecision | Literal["i32"]
"""How a summand travels: of f32 as WirePrecision says, of integers as it is."""

DType = Literal["f32", "bf16", "i32", "i64", "u8"]
_ITEM_SIZES = {"f32": 4, "bf16": 2, "i32": 4, "i64": 8, "u8": 1}


class TensorHeader(Struct, frozen=True):
    """Element type and shape of a tensor whose elements follow, row-major and little-endian."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * _ITEM_SIZES[self.dtype]


def wire_bytes(wire: WirePrecision, rows: int, columns: int) -> int:
    """Bytes of an f32 matrix that travels with the precision `wire`."""
    return rows * (_ITEM_SIZES[wire] * columns if wire != "int8" else columns + 4 * -(-columns // INT8_GROUP))


def check_tensors(headers: Sequence[TensorHeader], sizes: Sequence[int]) -> None:
    """Raise ProtocolError unless there is one tensor per header, of as many bytes as its header says."""
    if len(headers) != len(sizes):
        raise ProtocolError(f"{len(sizes)} tensors for {len(headers)} tensor headers")
    for header, count in zip(headers, sizes, strict=True):
        expected = header.nbytes
        if expected > MAX_TENSOR_BYTES:
            raise ProtocolError(f"tensor of {expected} bytes; a message holds at most {MAX_TENSOR_BYTES}")
        if count != expected:
            raise ProtocolError(f"tensor of {count} bytes where {header} needs {expected}")
