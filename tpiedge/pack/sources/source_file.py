"""A file whose parts are read once each: long runs of bytes past the page cache, but for what is there already.

A large read from the disk through the page cache takes several times the CPU time of one with O_DIRECT, and what it
leaves there pushes out what others need. Where the system does not tell what is in the page cache, all goes through it,
as strips of a matrix do: they are read in pieces that are too short.
"""

import math
import mmap
import os
from pathlib import Path
from typing import Final

import numpy as np

from tpiedge.errors import UserError
from tpiedge.pack.dtypes import Array
from tpiedge.pack.files import DIRECT_REFUSED, array_bytes, open_regular, read_exactly, read_strided
from tpiedge.pack.layout import ALIGN

#: A smaller read is not worth the pages at both ends that it shares with its neighbours.
_LEAST_BYTES: Final = 1 << 20


class SourceFile:
    """Open from construction to `close`. Raises UserError where it cannot be opened, ReadFault where not read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = open_regular(path)
        except OSError as error:
            raise UserError(f"cannot open {path}: {error.strerror}") from None
        self._direct = _open_direct(path)

    def array(self, offset: int, shape: tuple[int, ...], dtype: "np.dtype[np.generic]") -> Array:
        """The numbers from `offset` on."""
        nbytes = math.prod(shape) * dtype.itemsize
        if self._direct is not None and nbytes >= _LEAST_BYTES and not self._is_cached(offset, nbytes):
            raw = self._read_direct(self._direct, offset, nbytes)
            self._forget(offset, nbytes)
            aligned = raw if raw.ctypes.data % dtype.alignment == 0 else raw.copy()
            return aligned.view(dtype).reshape(shape)
        values = np.empty(shape, dtype)
        read_exactly(self._fd, self._path, offset, array_bytes(values))
        return values

    def strided(
        self, offset: int, stride: int, shape: tuple[int, int], dtype: "np.dtype[np.generic]"
    ) -> Array:
        """Rows of numbers, `stride` bytes apart, through the page cache."""
        values = np.empty(shape, dtype)
        read_strided(self._fd, self._path, offset, stride, values)
        return values

    def announce(self, offset: int, nbytes: int) -> None:
        """All of it will be read, in steps that defeat the system's readahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, nbytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        os.close(self._fd)
        self._drop_direct()

    def _is_cached(self, offset: int, nbytes: int) -> bool:
        """Whether the page cache has its first and last byte; also true where that cannot be known."""
        byte = bytearray(1)
        try:
            return all(
                os.preadv(self._fd, [byte], at, os.RWF_NOWAIT) == 1 for at in (offset, offset + nbytes - 1)
            )
        except BlockingIOError:
            return False
        except (OSError, NotImplementedError):  # it does not know how not to wait
            self._drop_direct()
            return True

    def _forget(self, offset: int, nbytes: int) -> None:
        """A system that is asked for a page reads it, which would seem to have been there when it is asked again. What
        was there of the rest goes, too."""
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        end = -(-(offset + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def _read_direct(self, fd: int, offset: int, nbytes: int) -> Array:
        """The bytes; through the page cache those that do not come so."""
        start = offset // ALIGN * ALIGN
        head, end = offset - start, -(-(offset + nbytes) // ALIGN) * ALIGN
        block = np.empty(end - start + ALIGN, np.uint8)
        skip = -block.ctypes.data % ALIGN
        view = block[skip : skip + end - start]
        done = 0
        while done < head + nbytes:
            try:
                count = os.preadv(fd, [view[done:].data], start + done)
            except OSError as error:
                if error.errno in DIRECT_REFUSED:
                    self._drop_direct()
                break
            done += count
            if count == 0 or done % ALIGN:  # the end of the file, or of what can be read so
                break
        if done < head + nbytes:
            done = max(done, head)
            read_exactly(self._fd, self._path, start + done, view[done : head + nbytes].data)
        return view[head : head + nbytes]

    def _drop_direct(self) -> None:
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None


def _open_direct(path: Path) -> int | None:
    """None where there is no such thing."""
    if not (hasattr(os, "O_DIRECT") and hasattr(os, "RWF_NOWAIT")):
        return None
    try:
        return open_regular(path, os.O_DIRECT)
    except OSError:
        return None
