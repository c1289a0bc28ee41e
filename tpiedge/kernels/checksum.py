"""CRC-32 as zlib's, at memory speed: what a disk brings is checked in every sweep."""

import zlib

import numpy as np

from tpiedge.kernels.shared_library import kernel_library


def crc32(data: memoryview, before: int = 0) -> int:
    """The CRC-32 of contiguous bytes, `before` being that of what comes before them. The GIL is released meanwhile."""
    library = kernel_library()
    if library is None:
        return zlib.crc32(data, before)
    at = np.frombuffer(data, np.uint8)
    return int(library.dll.tpiedge_crc32(at.ctypes.data, at.nbytes, before))
