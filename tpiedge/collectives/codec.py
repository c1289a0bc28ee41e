"""How matrices travel: f32 as they are, rounded to bf16, or as int8 with a scale per group of a row; integers
unchanged.

Every rank goes on with the values that others get: every part is rounded, then the sum, so bits do not depend on the
route, nor on other rows. numpy here and the native side give the same bits.
"""

from collections.abc import Mapping
from math import prod
from typing import Any, Final

import numpy as np

from tpiedge.collectives.summation import F32Array, IntArray, Summable
from tpiedge.errors import Misconduct
from tpiedge.pack.dtypes import bf16_from_f32, f32_from_bf16
from tpiedge.transport.endpoint import Buffer, Envelope
from tpiedge.transport.native_library import PRECISIONS, packing_library
from tpiedge.wire.fields import INT8_GROUP, SummandPrecision, TensorHeader, WirePrecision, wire_bytes

Shape = tuple[int, ...]

_LARGEST = np.float32(127)


def native_encode(precision: WirePrecision, array: Summable) -> memoryview | None:
    """The bytes of a matrix, encoded natively at several GB/s; None without the native side."""
    library = packing_library()
    if library is None:
        return None
    number, (rows, columns) = PRECISIONS[precision], array.shape
    values = np.ascontiguousarray(array, np.float32)
    packed = np.empty(library.tpiedge_wire_bytes(number, rows, columns), np.uint8)
    library.tpiedge_wire_encode(number, rows, columns, values.ctypes.data, packed.ctypes.data)
    return packed.data


def native_decode(precision: WirePrecision, data: Buffer, shape: tuple[int, ...]) -> F32Array | None:
    """The matrix; None without the native side. ValueError for a wrong number of bytes."""
    library = packing_library()
    if library is None:
        return None
    number, (rows, columns) = PRECISIONS[precision], shape
    packed = np.frombuffer(data, np.uint8)
    if packed.size != (expected := library.tpiedge_wire_bytes(number, rows, columns)):
        raise ValueError(f"{packed.size} bytes of {precision} are not the {expected} of shape {shape}")
    array = np.empty(shape, np.float32)
    library.tpiedge_wire_decode(number, rows, columns, packed.ctypes.data, array.ctypes.data)
    return array


class Codec:
    """f32 as it is, and what other precisions share. Arrays are contiguous matrices, all of f32 or all of integers."""

    name: SummandPrecision = "f32"
    exact = True
    dtype: np.dtype[Any] = np.dtype(np.float32)

    def header(self, shape: Shape, itemsize: int = 4) -> TensorHeader:
        """The tensor's header; `itemsize` tells narrow integers from wide ones."""
        if self.name == "int8":
            return TensorHeader("u8", (shape[0], wire_bytes("int8", 1, shape[1])))
        return TensorHeader("i64" if self.name == "i32" and itemsize == 8 else self.name, shape)

    def encode(self, array: Summable) -> Buffer:
        """The tensor's bytes; may be the array's own memory."""
        return array.data.cast("B") if array.size else b""

    def decode(self, data: Buffer, shape: Shape) -> Summable:
        """The array; may be read-only in the memory of `data`. Values that are not finite stay so. The number of bytes
        says how wide integers are."""
        return np.frombuffer(data, np.float32).reshape(shape)


class _BF16(Codec):
    """Rounded to the nearest, ties to even."""

    name = "bf16"
    exact = False

    def encode(self, array: Summable) -> Buffer:
        packed = native_encode("bf16", array)
        if packed is not None:
            return packed
        return bf16_from_f32(array).tobytes()

    def decode(self, data: Buffer, shape: Shape) -> Summable:
        array = native_decode("bf16", data, shape)
        if array is not None:
            return array
        return f32_from_bf16(np.frombuffer(data, np.uint16)).reshape(shape)


class _Int8(Codec):
    """Symmetric: the largest magnitude of a group becomes 127. A row is its elements, then its groups' scales."""

    name = "int8"
    exact = False

    def encode(self, array: Summable) -> Buffer:
        native = native_encode("int8", array)
        if native is not None:
            return native
        rows, columns = array.shape
        groups = -(-columns // INT8_GROUP)
        padded = np.zeros((rows, groups * INT8_GROUP), np.float32)
        padded[:, :columns] = array
        grouped = padded.reshape(rows, groups, INT8_GROUP)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            scales = (np.abs(grouped).max(axis=2) / _LARGEST).astype(np.float32)
            scales[np.isnan(scales)] = np.nan  # of several in a group, which `max` returns is not defined
            # Times the inverse, as every implementation does it: the same bits everywhere.
            inverse = np.where(scales > 0, np.float32(1) / scales, np.float32(0)).astype(np.float32)
            scaled = np.rint(grouped * inverse[:, :, None])
            codes = np.clip(np.nan_to_num(scaled, nan=0.0), -127, 127).astype(np.int8)
        packed = np.empty((rows, columns + 4 * groups), np.uint8)
        packed[:, :columns] = codes.reshape(rows, groups * INT8_GROUP)[:, :columns].view(np.uint8)
        packed[:, columns:] = np.ascontiguousarray(scales).view(np.uint8)
        return packed.tobytes()

    def decode(self, data: Buffer, shape: Shape) -> Summable:
        array = native_decode("int8", data, shape)
        if array is not None:
            return array
        rows, columns = shape
        groups = -(-columns // INT8_GROUP)
        packed = np.frombuffer(data, np.uint8).reshape(rows, columns + 4 * groups)
        codes = np.ascontiguousarray(packed[:, :columns]).view(np.int8).astype(np.float32)
        scales = np.ascontiguousarray(packed[:, columns:]).view(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            return codes * np.repeat(scales, INT8_GROUP, axis=1)[:, :columns]


class _Integers(Codec):
    """Narrow ones as i32, wide ones as i64 (summation.py)."""

    name = "i32"
    dtype = np.dtype(np.int32)

    def decode(self, data: Buffer, shape: Shape) -> Summable:
        wide = memoryview(data).nbytes > self.dtype.itemsize * prod(shape)
        array: IntArray = np.frombuffer(data, np.int64 if wide else np.int32)
        return array.reshape(shape)


CODECS: Final[Mapping[WirePrecision, Codec]] = {"f32": Codec(), "bf16": _BF16(), "int8": _Int8()}
"""Codecs of f32 by the names that users choose."""
INTEGERS: Final = _Integers()


def rounded(codec: Codec, array: Summable) -> Summable:
    """The array as another rank would get it; may be the array itself."""
    return array if codec.exact else codec.decode(codec.encode(array), array.shape)


def read_array(envelope: Envelope, rank: int, shape: Shape, codec: Codec | None) -> Summable:
    """A message's tensor, read-only, of `shape` once `codec` (None: f32 or bf16 as its header says) has read it. Raises
    Misconduct."""
    header = envelope.message.tensor  # type: ignore[attr-defined]
    if codec is None:
        codec = CODECS["bf16" if header is not None and header.dtype == "bf16" else "f32"]
    if header != codec.header(shape) and header != codec.header(shape, itemsize=8):
        expected = {"bf16": "a bf16", "i32": "an i32 or i64"}.get(codec.name, f"an {codec.name}")
        raise Misconduct(rank, f"node {rank} sent {header} where {expected} tensor of shape {shape} belongs")
    return codec.decode(envelope.tensors[0], shape)
