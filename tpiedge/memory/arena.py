"""Maps memory for a node's weights or KV cache. Tensors that view the mapping keep it alive."""

import contextlib
import mmap
import sys
from typing import Final

import numpy as np
import torch

from tpiedge.errors import InternalError, OutOfMemory
from tpiedge.pack.layout import ALIGN, whole_pages
from tpiedge.pack.specs import Precision
from tpiedge.units import format_bytes

# Python has this name from 3.13 on.
_NORESERVE: Final = 0x4000 if sys.platform == "linux" else 0
DTYPES = {Precision.F32: torch.float32, Precision.BF16: torch.bfloat16}


class Arena:
    """`nbytes` bytes of page-aligned, anonymous memory. Raises OutOfMemory with `purpose` and `remedy`."""

    def __init__(
        self,
        nbytes: int,
        purpose: str = "weights",
        remedy: str = "give this node a smaller share",
        *,
        committed: bool = False,
        filled: bool = False,
    ) -> None:
        """`committed` makes the system refuse sizes beyond its memory. `filled` memory lies in huge pages, because the
        caller uses all of it."""
        self.nbytes = whole_pages(nbytes)
        # Without MAP_NORESERVE the kernel refuses address space beyond its memory, though little of it is ever used.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0 if committed else _NORESERVE)
        try:
            self._map = mmap.mmap(-1, max(self.nbytes, ALIGN), flags=flags)
        except (OSError, OverflowError, ValueError) as error:
            raise OutOfMemory(
                f"cannot reserve {format_bytes(nbytes)} for {purpose} ({error}): {remedy}"
            ) from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # A token's products read huge pages a quarter faster, but in partly used memory a byte makes 2 MiB
            # resident.
            with contextlib.suppress(OSError):  # a kernel without them
                self._map.madvise(mmap.MADV_HUGEPAGE if filled else mmap.MADV_NOHUGEPAGE)

    def buffer(self, offset: int, length: int) -> memoryview:
        return memoryview(self._map)[offset : offset + length]

    def bytes(self, offset: int, length: int) -> torch.Tensor:
        # By way of numpy, whose array keeps the mapping open: torch.frombuffer would let `close` unmap it.
        return torch.from_numpy(np.frombuffer(self._map, np.uint8, length, offset))

    def discard(self, offset: int, length: int) -> None:
        """Gives an extent of whole pages back to the system. The bytes become zeros."""
        if length:
            self._map.madvise(mmap.MADV_DONTNEED, offset, length)

    def close(self) -> None:
        """Frees the memory once no tensor views it."""
        with contextlib.suppress(BufferError):
            self._map.close()


def as_matrix(
    stored: torch.Tensor, rows: int, cols: int, row_stride: int, dtype: torch.dtype
) -> torch.Tensor:
    """Returns a view of the bytes as [rows, cols]. `row_stride` counts bytes."""
    if rows * row_stride > len(stored):
        raise InternalError(f"{rows} rows of {row_stride} bytes in an extent of {len(stored)}")
    return stored.view(dtype).as_strided((rows, cols), (row_stride // dtype.itemsize, 1))
