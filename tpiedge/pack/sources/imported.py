"""Sources of tensors of every kind, those that others have quantised among them."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tpiedge.pack.dtypes import Array, SourceDtype
from tpiedge.pack.sources.codes import Codes
from tpiedge.pack.sources.ggml_tensor import BlockTensor
from tpiedge.pack.sources.imported_tensor import ImportedTensor, OpenFiles
from tpiedge.pack.sources.int4_tensor import Int4Tensor
from tpiedge.pack.sources.source import CheckpointSource, SourceTensor, TensorSource, digest_line
from tpiedge.pack.specs import JSON

__all__ = [
    "AnyTensor",
    "ImportedSource",
    "ImportedTensor",
    "open_tensors",
    "tensor_from_json",
    "tensor_to_json",
]

AnyTensor: TypeAlias = SourceTensor | BlockTensor | Int4Tensor


class ImportedSource:
    """A TensorSource over tensors of every kind. `read_codes` hands on integers where a pack holds them as they are."""

    def __init__(self, tensors: Mapping[str, AnyTensor]) -> None:
        self._plain = CheckpointSource(
            {n: t for n, t in tensors.items() if not isinstance(t, ImportedTensor)}
        )
        self._imported = {n: t for n, t in tensors.items() if isinstance(t, ImportedTensor)}
        self._files = OpenFiles()

    @property
    def fingerprint(self) -> str:
        """Made as a checkpoint's is: from names, offsets, and each file's size and time of change."""
        digest = hashlib.sha256(self._plain.fingerprint.encode())
        for name, tensor in sorted(self._imported.items()):
            digest.update(digest_line(name, json.dumps(tensor.to_json(lambda path: path.name))))
        for file in sorted({file for tensor in self._imported.values() for file in tensor.files}):
            stat = os.fstat(self._files.fd(file))
            digest.update(digest_line(file.name, stat.st_size, stat.st_mtime_ns))
        return f"imported {digest.hexdigest()}"

    def shape(self, name: str) -> tuple[int, ...]:
        found = self._imported.get(name)
        return found.shape if found else self._plain.shape(name)

    def dtype(self, name: str) -> SourceDtype:
        found = self._imported.get(name)
        return found.dtype if found else self._plain.dtype(name)

    def read_vector(self, name: str) -> Array:
        found = self._imported.get(name)
        if found is None:
            return self._plain.read_vector(name)
        values: Array = found.read(self._files, range(1), range(math.prod(found.shape)))[0]
        return values

    def read_rows(self, name: str, first: int, count: int) -> Array:
        found = self._imported.get(name)
        if found is None:
            return self._plain.read_rows(name, first, count)
        return found.read(self._files, range(first, first + count), range(found.shape[1]))

    def read_columns(self, name: str, first: int, count: int) -> Array:
        found = self._imported.get(name)
        if found is None:
            return self._plain.read_columns(name, first, count)
        return found.read(self._files, range(found.shape[0]), range(first, first + count))

    def read_block(self, name: str, first_row: int, rows: int, first_col: int, cols: int) -> Array:
        found = self._imported.get(name)
        if found is None:
            return self._plain.read_block(name, first_row, rows, first_col, cols)
        return found.read(self._files, range(first_row, first_row + rows), range(first_col, first_col + cols))

    def read_codes(self, name: str, rows: range, cols: range, bits: int) -> Codes | None:
        """The rectangle of a matrix as integers of `bits` bits, its groups counted from its first column; None where
        none say exactly the same."""
        found = self._imported.get(name)
        return found.codes(self._files, rows, cols, bits) if found else None

    def close(self) -> None:
        self._plain.close()
        self._files.close()


def open_tensors(tensors: Mapping[str, AnyTensor]) -> TensorSource:
    """The source that reads them."""
    plain = {name: tensor for name, tensor in tensors.items() if not isinstance(tensor, ImportedTensor)}
    return CheckpointSource(plain) if len(plain) == len(tensors) else ImportedSource(tensors)


def tensor_to_json(tensor: AnyTensor) -> JSON:
    """What `tensor_from_json` makes it from."""
    if isinstance(tensor, ImportedTensor):
        return tensor.to_json(lambda path: str(path.absolute()))
    return [str(tensor.file.absolute()), tensor.dtype, list(tensor.shape), tensor.offset, tensor.nbytes]


def tensor_from_json(value: Any) -> AnyTensor:
    """Reads only what this module wrote: a malformed value is a KeyError, TypeError or ValueError."""
    if isinstance(value, dict):
        return BlockTensor.from_json(value) if "blocks" in value else Int4Tensor.from_json(value)
    file, dtype, shape, offset, nbytes = value
    return SourceTensor(Path(file), dtype, tuple(shape), offset, nbytes)
