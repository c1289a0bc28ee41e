"""Packing by the transport's native side, at several GB/s, where that was built: the bits are those of `codec.py`."""

import numpy as np

from tpiedge.collectives.arrays import Array
from tpiedge.transport.endpoint import Buffer
from tpiedge.transport.native_library import PRECISIONS, packing_library
from tpiedge.wire.fields import WirePrecision

__all__ = ["pack", "unpack"]


def pack(precision: WirePrecision, array: Array) -> memoryview | None:
    """The bytes of a matrix; None where there is no native side."""
    library = packing_library()
    if library is None:
        return None
    number, (rows, columns) = PRECISIONS[precision], array.shape
    values = np.ascontiguousarray(array, np.float32)
    packed = np.empty(library.tpiedge_wire_bytes(number, rows, columns), np.uint8)
    library.tpiedge_wire_encode(number, rows, columns, values.ctypes.data, packed.ctypes.data)
    return packed.data


def unpack(precision: WirePrecision, data: Buffer, shape: tuple[int, ...]) -> Array | None:
    """The matrix of these bytes; None where there is no native side. ValueError where they are not as many."""
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
