"""Where the writer takes its numbers from, by rectangles that fit its memory."""

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from tpiedge.errors import UserError
from tpiedge.pack.dtypes import Array, SourceDtype, numpy_dtype
from tpiedge.pack.sources.source_file import SourceFile


def digest_line(*parts: object) -> bytes:
    """A line that fingerprints are made from. A file's name need not be UTF-8."""
    return (" ".join(map(str, parts)) + "\n").encode(errors="surrogatepass")


class TensorSource(Protocol):
    """Named tensors of which rectangles can be read.

    Arrays are float32 for F32, float16 for F16 and uint16 (bits) for BF16; they may be changed by the caller.
    Unknown names raise UserError, failed reads ReadFault.
    """

    @property
    def fingerprint(self) -> str:
        """Two sources of the same fingerprint hold the same numbers."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> SourceDtype: ...

    def read_vector(self, name: str) -> Array:
        """The whole 1-D tensor."""
        ...

    def read_rows(self, name: str, first: int, count: int) -> Array:
        """[count, cols]: whole rows of a 2-D tensor."""
        ...

    def read_columns(self, name: str, first: int, count: int) -> Array:
        """[rows, count]: a vertical strip of a 2-D tensor."""
        ...

    def read_block(self, name: str, first_row: int, rows: int, first_col: int, cols: int) -> Array:
        """[rows, cols]: a rectangle of a 2-D tensor."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class SourceTensor:
    """`nbytes` bytes at `offset` of `file` hold the tensor in row-major order, little-endian.

    `dtype` is the safetensors name: of those that can be packed, F32, F16 and BF16, or another.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class CheckpointSource:
    """A TensorSource over tensors in files. Files are opened at first use and closed by `close`."""

    def __init__(self, tensors: Mapping[str, SourceTensor]) -> None:
        self._tensors = tensors
        self._files: dict[Path, SourceFile] = {}

    @property
    def fingerprint(self) -> str:
        """Made from names, offsets, and each file's size and time of change: reading the numbers would take a pass."""
        digest = hashlib.sha256()
        for name, t in sorted(self._tensors.items()):
            digest.update(digest_line(name, t.dtype, t.shape, t.offset, t.file.name))
        for file in sorted({tensor.file for tensor in self._tensors.values()}):
            stat = _stat(file)
            digest.update(digest_line(file.name, stat.st_size, stat.st_mtime_ns))
        return f"checkpoint {digest.hexdigest()}"

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def dtype(self, name: str) -> SourceDtype:
        return cast(SourceDtype, self._tensor(name).dtype)

    def read_vector(self, name: str) -> Array:
        tensor = self._tensor(name)
        return self._file(tensor).array(tensor.offset, tensor.shape, numpy_dtype(tensor.dtype))

    def read_rows(self, name: str, first: int, count: int) -> Array:
        tensor = self._tensor(name)
        dtype, cols = numpy_dtype(tensor.dtype), tensor.shape[1]
        return self._file(tensor).array(tensor.offset + first * cols * dtype.itemsize, (count, cols), dtype)

    def read_columns(self, name: str, first: int, count: int) -> Array:
        tensor = self._tensor(name)
        if first == 0:  # its strips touch all of it again and again
            self._file(tensor).announce(tensor.offset, tensor.nbytes)
        return self.read_block(name, 0, tensor.shape[0], first, count)

    def read_block(self, name: str, first_row: int, rows: int, first_col: int, cols: int) -> Array:
        tensor = self._tensor(name)
        dtype = numpy_dtype(tensor.dtype)
        stride = tensor.shape[1] * dtype.itemsize
        offset = tensor.offset + first_row * stride + first_col * dtype.itemsize
        return self._file(tensor).strided(offset, stride, (rows, cols), dtype)

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def _tensor(self, name: str) -> SourceTensor:
        if name not in self._tensors:
            raise UserError(f"the checkpoint has no tensor {name}: is the download complete?")
        # Checked when asked for: a checkpoint may hold integers that no spec names.
        _check_tensor(name, self._tensors[name])
        return self._tensors[name]

    def _file(self, tensor: SourceTensor) -> SourceFile:
        if tensor.file not in self._files:
            self._files[tensor.file] = SourceFile(tensor.file)
        return self._files[tensor.file]


def _stat(file: Path) -> os.stat_result:
    try:
        return file.stat()
    except OSError as error:
        raise UserError(f"cannot open {file}: {error.strerror}") from None


def _check_tensor(name: str, tensor: SourceTensor) -> None:
    if tensor.dtype not in ("F32", "F16", "BF16"):
        raise UserError(
            f"tensor {name} of {tensor.file} is {tensor.dtype}; only F32, F16 and BF16 can be packed"
        )
    itemsize = numpy_dtype(tensor.dtype).itemsize
    if tensor.offset < 0 or tensor.nbytes != math.prod(tensor.shape) * itemsize:
        raise UserError(f"tensor {name} of {tensor.file} has {tensor.nbytes} bytes, not those of its shape")
