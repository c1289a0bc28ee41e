"""Opening and reading files that strangers may have written."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tpiedge.errors import ReadFault
from tpiedge.pack.dtypes import Array

DIRECT_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
"""What a file system that has no O_DIRECT says to it."""


def open_regular(path: Path, flags: int = 0) -> int:
    """A descriptor of the regular file `path`, for reading. Raises OSError; never waits for a pipe or a device."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return fd


def read_exactly(fd: int, path: Path, offset: int, into: memoryview) -> None:
    """Fill `into` from `offset`. Raises ReadFault, also where the file ends early."""
    done = 0
    while done < len(into):
        try:
            count = os.preadv(fd, [into[done:]], offset + done)
        except OSError as error:
            raise ReadFault(path, offset + done, len(into) - done, error.strerror or str(error)) from None
        if count == 0:
            raise ReadFault(path, offset + done, len(into) - done, "the file ends before; write it anew")
        done += count


def read_parts(fd: int, path: Path, offset: int, length: int, buffer: memoryview) -> Iterator[memoryview]:
    """`length` bytes from `offset` on, each time as many as `buffer` holds, in it. Raises as `read_exactly`."""
    for done in range(0, length, len(buffer)):
        part = buffer[: min(len(buffer), length - done)]
        read_exactly(fd, path, offset + done, part)
        yield part


def read_strided(fd: int, path: Path, offset: int, stride: int, into: Array) -> None:
    """Fill each row of the C-contiguous `into` from `offset + row * stride`."""
    view = array_bytes(into)
    row_bytes = into.strides[0]
    if row_bytes == stride:
        read_exactly(fd, path, offset, view)
        return
    for row in range(into.shape[0]):
        read_exactly(fd, path, offset + row * stride, view[row * row_bytes : (row + 1) * row_bytes])


def array_bytes(values: Array) -> memoryview:
    """The bytes of a C-contiguous array, shared."""
    return values.reshape(-1).view(np.uint8).data
