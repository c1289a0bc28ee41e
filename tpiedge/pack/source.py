"""Reads the numbers for a pack from files, in rectangles that fit the memory."""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import msgspec
import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import Array, Codes, PanelFormat
from tpiedge.pack.dtypes import NUMPY, SourceDtype
from tpiedge.pack.files import OpenFile
from tpiedge.pack.layout import ALIGN, whole_pages
from tpiedge.pack.specs import JSON


class SourceFile(OpenFile):
    """A file that one thread reads once, in parts. Long parts are read with O_DIRECT, unless they are cached."""

    def strided(
        self, offset: int, stride: int, shape: tuple[int, int], dtype: "np.dtype[np.generic]"
    ) -> Array:
        # O_DIRECT takes less CPU time.
        nbytes = math.prod(shape) * dtype.itemsize
        # A smaller read would waste too much on the pages at its ends, which it shares with its neighbours.
        scattered = shape[1] * dtype.itemsize != stride or nbytes < 1 << 20
        if scattered or (self._is_cached(offset) and self._is_cached(offset + nbytes - 1)):
            return super().strided(offset, stride, shape, dtype)
        raw = self._past_the_cache(offset, nbytes)
        aligned = raw if raw.ctypes.data % dtype.alignment == 0 else raw.copy()
        return aligned.view(dtype).reshape(shape)

    def _is_cached(self, offset: int) -> bool:
        try:
            return os.preadv(self._fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False
        except (OSError, NotImplementedError, AttributeError):  # the system or its file system cannot tell
            return True

    def _past_the_cache(self, offset: int, nbytes: int) -> Array:
        start, end = offset // ALIGN * ALIGN, whole_pages(offset + nbytes)
        block = np.empty(end - start + ALIGN, np.uint8)
        view = block[-block.ctypes.data % ALIGN :][: end - start]
        head = offset - start
        done = 0
        if self.set_direct(True):
            with contextlib.suppress(OSError):
                done = self.read_into(start, view.data)
            self.set_direct(False)
        # `_is_cached` made the system read its pages, which would seem cached next time.
        self.advise("DONTNEED", start, end - start)
        if done < head + nbytes:
            done = max(done, head)
            self.read(start + done, view[done : head + nbytes].data)
        return view[head : head + nbytes]


class OpenFiles(dict[Path, SourceFile]):
    """Files by path, opened at first use. Raises UserError."""

    def __missing__(self, path: Path) -> SourceFile:
        self[path] = SourceFile(path)
        return self[path]

    def close(self) -> None:
        while self:
            self.popitem()[1].close()


@runtime_checkable
class StoredTensor(Protocol):
    """A tensor in `files`. `shape` is [outputs, inputs] or [length]."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def files(self) -> tuple[Path, ...]: ...

    def read(self, files: OpenFiles, rows: range, cols: range) -> Array:
        """Returns the rectangle [rows, cols], in numbers of `dtype`. A vector is one row."""
        ...

    def codes(self, files: OpenFiles, rows: range, cols: range, form: PanelFormat) -> Codes | None:
        """Returns the rectangle exactly in the format, with finite scales, or None if that is impossible."""
        ...


class SourceTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor in row-major order, little-endian. `dtype`: any dtype of safetensors."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.file,)

    def read(self, files: OpenFiles, rows: range, cols: range) -> Array:
        whole, width = self.shape[-1], len(cols)
        if width < whole and cols.start == 0 and len(rows) == self.shape[0]:
            # Strips touch all of the tensor many times, in steps that defeat the system's readahead.
            files[self.file].advise("WILLNEED", self.offset, self.nbytes)
        return self.rectangle(files, rows, cols, NUMPY[self.dtype])

    def rectangle(self, files: OpenFiles, rows: range, cols: range, dtype: Any) -> Array:
        stride = self.shape[-1] * dtype.itemsize
        offset = self.offset + rows.start * stride + cols.start * dtype.itemsize
        return files[self.file].strided(offset, stride, (len(rows), len(cols)), dtype)

    def codes(self, files: OpenFiles, rows: range, cols: range, form: PanelFormat) -> Codes | None:
        del files, rows, cols, form
        return None


class TensorRows(msgspec.Struct, frozen=True):
    """Some rows of another tensor, from row `first` on."""

    rows_of: StoredTensor
    first: int
    shape: tuple[int, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        return self.rows_of.files

    @property
    def dtype(self) -> str:
        return self.rows_of.dtype

    def read(self, files: OpenFiles, rows: range, cols: range) -> Array:
        return self.rows_of.read(files, self._own(rows), cols)

    def codes(self, files: OpenFiles, rows: range, cols: range, form: PanelFormat) -> Codes | None:
        return self.rows_of.codes(files, self._own(rows), cols, form)

    def _own(self, rows: range) -> range:
        return range(rows.start + self.first, rows.stop + self.first)


class TensorColumns(msgspec.Struct, frozen=True):
    """Every `step`-th column of another tensor, from column `first` on, as rows if `turned`."""

    columns_of: StoredTensor
    first: int
    step: int
    turned: bool

    @property
    def shape(self) -> tuple[int, ...]:
        rows, cols = self.columns_of.shape
        own = cols // self.step
        return (own, rows) if self.turned else (rows, own)

    @property
    def files(self) -> tuple[Path, ...]:
        return self.columns_of.files

    @property
    def dtype(self) -> str:
        return self.columns_of.dtype

    def read(self, files: OpenFiles, rows: range, cols: range) -> Array:
        if self.turned:
            rows, cols = cols, rows
        first, step = self.first, self.step
        wanted = range(first + step * cols.start, first + step * (cols.stop - 1) + 1)
        found = self.columns_of.read(files, rows, wanted)[:, ::step]
        return np.ascontiguousarray(found.T if self.turned else found)

    def codes(self, files: OpenFiles, rows: range, cols: range, form: PanelFormat) -> Codes | None:
        del files, rows, cols, form
        return None


def tensor_to_json(tensor: StoredTensor, path_text: Callable[[Path], str]) -> JSON:
    """Returns the JSON that `tensor_from_json` reads."""
    found: JSON = msgspec.to_builtins(tensor, enc_hook=path_text)
    return found


class TensorSource:
    """Reads named tensors. Not thread-safe. `read` returns float32 for F32, float16 for F16, and the bits as uint16
    for BF16. Raises ReadFault, and UserError for unknown names."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self._tensors = tensors
        self._files = OpenFiles()

    @property
    def fingerprint(self) -> str:
        """A hash of the tensors' names and offsets, and of the files' sizes and times."""
        plain = {name: one for name, one in self._tensors.items() if isinstance(one, SourceTensor)}
        digest = hashlib.sha256()
        for name, t in sorted(plain.items()):
            digest.update(_line(name, t.dtype, t.shape, t.offset, t.file.name))
        digest.update(_lines_of_files(plain.values()))
        if len(plain) == len(self._tensors):
            return f"checkpoint {digest.hexdigest()}"
        imported = {name: one for name, one in self._tensors.items() if name not in plain}
        digest = hashlib.sha256(f"checkpoint {digest.hexdigest()}".encode())
        for name, tensor in sorted(imported.items()):
            digest.update(_line(name, json.dumps(tensor_to_json(tensor, lambda path: path.name))))
        digest.update(_lines_of_files(imported.values()))
        return f"imported {digest.hexdigest()}"

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def dtype(self, name: str) -> SourceDtype:
        return cast(SourceDtype, self._tensor(name).dtype)

    def read(self, name: str, rows: range | None = None, cols: range | None = None) -> Array:
        """Returns the rectangle [rows, cols], by default the whole tensor. A vector is one row."""
        tensor = self._tensor(name)
        height, width = (1, *tensor.shape)[-2:]
        rows = range(height) if rows is None else rows
        return tensor.read(self._files, rows, range(width) if cols is None else cols)

    def read_codes(self, name: str, rows: range, cols: range, form: PanelFormat) -> Codes | None:
        return self._tensor(name).codes(self._files, rows, cols, form)

    def close(self) -> None:
        self._files.close()

    def _tensor(self, name: str) -> StoredTensor:
        if name not in self._tensors:
            raise UserError(f"the checkpoint has no tensor {name}: is the download complete?")
        tensor = self._tensors[name]
        if isinstance(tensor, SourceTensor):
            # Checked when asked for: a checkpoint may hold integers that no spec names.
            if tensor.dtype not in ("F32", "F16", "BF16"):
                raise UserError(
                    f"tensor {name} of {tensor.file} is {tensor.dtype}; only F32, F16 and BF16 can be packed"
                )
            itemsize = NUMPY[tensor.dtype].itemsize
            if tensor.offset < 0 or tensor.nbytes != math.prod(tensor.shape) * itemsize:
                raise UserError(
                    f"tensor {name} of {tensor.file} has {tensor.nbytes} bytes, not those of its shape"
                )
        return tensor


def _line(*parts: object) -> bytes:
    return (" ".join(map(str, parts)) + "\n").encode(errors="surrogatepass")


def _lines_of_files(tensors: Iterable[StoredTensor]) -> bytes:
    lines = []
    for file in sorted({file for tensor in tensors for file in tensor.files}):
        try:
            stat = os.stat(file)
        except OSError as error:
            raise UserError(f"cannot open {file}: {error.strerror}") from None
        lines.append(_line(file.name, stat.st_size, stat.st_mtime_ns))
    return b"".join(lines)
