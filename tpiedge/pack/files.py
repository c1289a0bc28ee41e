"""Opening and reading files that strangers may have written."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np

from tpiedge.errors import ReadFault, UserError
from tpiedge.kernels.panels import Array

DIRECT_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
"""What a file system that has no O_DIRECT says to it."""


class Descriptor:
    """Owns the file descriptor `_fd`, below 0 where there is none. `close` may be called twice; a context manager."""

    _fd = -1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OpenFile(Descriptor):
    """The regular file `path`, open for reading in parts. Raises UserError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = open_regular(path)
        except OSError as error:
            raise UserError(f"cannot open {path}: {error.strerror}") from None

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into` from `offset`. Raises ReadFault, also where the file ends early."""
        done = 0
        while done < len(into):
            try:
                count = os.preadv(self._fd, [into[done:]], offset + done)
            except OSError as error:
                cause = error.strerror or str(error)
                raise ReadFault(self.path, offset + done, len(into) - done, cause) from None
            if count == 0:
                raise ReadFault(
                    self.path, offset + done, len(into) - done, "the file ends before; write it anew"
                )
            done += count

    def parts(self, offset: int, length: int, buffer: memoryview) -> Iterator[memoryview]:
        """`length` bytes from `offset` on, each time as many as `buffer` holds, in it. Raises as `read`."""
        for done in range(0, length, len(buffer)):
            part = buffer[: min(len(buffer), length - done)]
            self.read(offset + done, part)
            yield part

    def array(self, offset: int, shape: tuple[int, ...], dtype: "np.dtype[np.generic]") -> Array:
        """The numbers from `offset` on."""
        values = np.empty(shape, dtype)
        self.read(offset, array_bytes(values))
        return values

    def strided(
        self, offset: int, stride: int, shape: tuple[int, int], dtype: "np.dtype[np.generic]"
    ) -> Array:
        """Rows of numbers, `stride` bytes apart."""
        values = np.empty(shape, dtype)
        view, row_bytes = array_bytes(values), values.strides[0]
        if row_bytes == stride:
            self.read(offset, view)
        else:
            for row in range(shape[0]):
                self.read(offset + row * stride, view[row * row_bytes : (row + 1) * row_bytes])
        return values

    def advise(self, advice: str, offset: int = 0, nbytes: int = 0) -> None:
        """Tells the system how the file will be read, where it listens: `advice` as in "RANDOM"."""
        if hasattr(os, "posix_fadvise"):  # not on macOS
            os.posix_fadvise(self._fd, offset, nbytes, getattr(os, f"POSIX_FADV_{advice}"))


def open_regular(path: Path, flags: int = 0) -> int:
    """A descriptor of the regular file `path`, for reading. Raises OSError; never waits for a pipe or a device."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return fd


def array_bytes(values: Array) -> memoryview:
    """The bytes of a C-contiguous array, shared."""
    return values.reshape(-1).view(np.uint8).data
