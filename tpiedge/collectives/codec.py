"""Encodes matrices as f32, as bf16, as integers, or as int8 with a scale for each group of a row.

A rank computes with the rounded values that it sends. So star, mesh and two-shot give the same bits. numpy and native
code give the same bits.
"""

from math import prod
from typing import Final

import numpy as np

from tpiedge.collectives.summation import F32Array, IntArray, Summable
from tpiedge.errors import Misconduct
from tpiedge.pack.dtypes import bf16_from_f32, f32_from_bf16
from tpiedge.transport.endpoint import Buffer, Envelope
from tpiedge.transport.native_library import PRECISIONS, packing_library
from tpiedge.wire.fields import INT8_GROUP, SummandPrecision, TensorHeader, wire_bytes

Shape = tuple[int, ...]

EXACT: Final = frozenset[SummandPrecision]({"f32", "i32"})
"""Precisions that do not round."""

_LARGEST = np.float32(127)


def header_of(wire: SummandPrecision, shape: Shape, itemsize: int = 4) -> TensorHeader:
    """Returns a tensor's header. `itemsize`: 8 for wide integers."""
    if wire == "int8":
        return TensorHeader("u8", (shape[0], wire_bytes("int8", 1, shape[1])))
    return TensorHeader("i64" if wire == "i32" and itemsize == 8 else wire, shape)


def encode_array(wire: SummandPrecision, array: Summable) -> Buffer:
    """Encodes a contiguous matrix in the precision `wire`, perhaps without a copy."""
    if wire in EXACT:
        return array.data.cast("B") if array.size else b""
    library = packing_library()
    if library is None:
        return bf16_from_f32(array).tobytes() if wire == "bf16" else _int8_from_f32(array)
    number, (rows, columns) = PRECISIONS[wire], array.shape
    values = np.ascontiguousarray(array, np.float32)
    packed = np.empty(library.tpiedge_wire_bytes(number, rows, columns), np.uint8)
    library.tpiedge_wire_encode(number, rows, columns, values.ctypes.data, packed.ctypes.data)
    return packed.data


def decode_array(wire: SummandPrecision, data: Buffer, shape: Shape) -> Summable:
    """Returns the matrix, perhaps as a read-only view of `data`. Raises ValueError."""
    if wire == "f32":
        return np.frombuffer(data, np.float32).reshape(shape)
    if wire == "i32":
        wide = memoryview(data).nbytes > 4 * prod(shape)
        integers: IntArray = np.frombuffer(data, np.int64 if wide else np.int32)
        return integers.reshape(shape)
    library = packing_library()
    if library is None:
        if wire == "bf16":
            return f32_from_bf16(np.frombuffer(data, np.uint16)).reshape(shape)
        return _f32_from_int8(data, shape)
    number, (rows, columns) = PRECISIONS[wire], shape
    packed = np.frombuffer(data, np.uint8)
    if packed.size != (expected := library.tpiedge_wire_bytes(number, rows, columns)):
        raise ValueError(f"{packed.size} bytes of {wire} are not the {expected} of shape {shape}")
    array = np.empty(shape, np.float32)
    library.tpiedge_wire_decode(number, rows, columns, packed.ctypes.data, array.ctypes.data)
    return array


def rounded(wire: SummandPrecision, array: Summable) -> Summable:
    """Returns the array as another rank gets it, perhaps without a copy."""
    return array if wire in EXACT else decode_array(wire, encode_array(wire, array), array.shape)


def read_array(envelope: Envelope, rank: int, shape: Shape, wire: SummandPrecision | None) -> Summable | None:
    """Decodes a message's tensor, if any, perhaps as read-only. If `wire` is None, the header chooses f32 or bf16.
    Raises Misconduct."""
    if envelope.tensor is None:
        return None
    header = envelope.message.tensor  # type: ignore[attr-defined]
    if wire is None:
        wire = "bf16" if header.dtype == "bf16" else "f32"
    if header not in (header_of(wire, shape), header_of(wire, shape, itemsize=8)):
        expected = {"bf16": "a bf16", "i32": "an i32 or i64"}.get(wire, f"an {wire}")
        raise Misconduct(rank, f"node {rank} sent {header} where {expected} tensor of shape {shape} belongs")
    return decode_array(wire, envelope.tensor, shape)


def _int8_from_f32(array: Summable) -> bytes:
    """Encodes each row: first its elements, then the scales of its groups."""
    rows, columns = array.shape
    groups = -(-columns // INT8_GROUP)
    padded = np.zeros((rows, groups * INT8_GROUP), np.float32)
    padded[:, :columns] = array
    grouped = padded.reshape(rows, groups, INT8_GROUP)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        scales = (np.abs(grouped).max(axis=2) / _LARGEST).astype(np.float32)
        scales[np.isnan(scales)] = np.nan  # which of several NaN `max` returns is not defined
        # Times the inverse, as every implementation does it: the same bits everywhere.
        inverse = np.where(scales > 0, np.float32(1) / scales, np.float32(0)).astype(np.float32)
        scaled = np.rint(grouped * inverse[:, :, None])
        codes = np.clip(np.nan_to_num(scaled, nan=0.0), -127, 127).astype(np.int8)
    packed = np.empty((rows, columns + 4 * groups), np.uint8)
    packed[:, :columns] = codes.reshape(rows, groups * INT8_GROUP)[:, :columns].view(np.uint8)
    packed[:, columns:] = np.ascontiguousarray(scales).view(np.uint8)
    return packed.tobytes()


def _f32_from_int8(data: Buffer, shape: Shape) -> F32Array:
    rows, columns = shape
    groups = -(-columns // INT8_GROUP)
    packed = np.frombuffer(data, np.uint8).reshape(rows, columns + 4 * groups)
    codes = np.ascontiguousarray(packed[:, :columns]).view(np.int8).astype(np.float32)
    scales = np.ascontiguousarray(packed[:, columns:]).view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        return codes * np.repeat(scales, INT8_GROUP, axis=1)[:, :columns]
