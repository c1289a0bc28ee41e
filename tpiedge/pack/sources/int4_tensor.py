"""A matrix of a GPTQ or AWQ checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import GROUP, OFFSETS
from tpiedge.pack.dtypes import Array, SourceDtype, f32_from_bf16, numpy_dtype
from tpiedge.pack.files import array_bytes, read_exactly, read_strided
from tpiedge.pack.sources.codes import Codes
from tpiedge.pack.sources.imported_tensor import ImportedTensor, OpenFiles, PathText
from tpiedge.pack.sources.int4_words import AWQ_ORDER, WORD, unpack_words
from tpiedge.pack.sources.source import SourceTensor
from tpiedge.pack.specs import JSON

_WORDS = np.dtype("<u4")
_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Int4Tensor(ImportedTensor):
    """The parts of a matrix, as int4_words.py says; `scheme` is "gptq" or "awq".

    `group` inputs share a scale, `zero_offset` is added to a stored zero point. `group_of` holds the group of each
    input where they do not lie in order.
    """

    scheme: str
    group: int
    zero_offset: int
    qweight: SourceTensor
    qzeros: SourceTensor
    scales: SourceTensor
    group_of: SourceTensor | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        parts = (self.qweight, self.qzeros, self.scales, self.group_of)
        return tuple(dict.fromkeys(part.file for part in parts if part))

    @property
    def dtype(self) -> SourceDtype:
        return "F32"

    def read(self, files: OpenFiles, rows: range, cols: range) -> Array:
        zeros, scales = self._zeros(files, rows), self._scales(files, rows)
        groups = self._groups(files)[cols.start : cols.stop]
        values = self._codes(files, rows, cols).astype(np.float32)
        for first in range(
            0, len(rows), _ROWS_AT_ONCE
        ):  # the factors of all rows would take as much again, twice
            part = slice(first, first + _ROWS_AT_ONCE)
            values[part] -= zeros[part, groups]
            with np.errstate(all="ignore"):  # a damaged file has any scale
                values[part] *= scales[part, groups]
        return values

    def codes(self, files: OpenFiles, rows: range, cols: range, bits: int) -> Codes | None:
        groups = self._groups(files)[cols.start : cols.stop]
        firsts = groups[::GROUP]
        if not np.array_equal(np.repeat(firsts, GROUP)[: len(groups)], groups):
            return None
        scales, zeros = self._scales(files, rows)[:, firsts], self._zeros(files, rows)
        with np.errstate(over="ignore"):
            halves = scales.astype(np.float16)
        if not np.array_equal(halves.astype(np.float32), scales) or not np.isfinite(halves).all():
            return None
        if bits == 4:
            return Codes(4, self._codes(files, rows, cols), halves) if (zeros == OFFSETS[4]).all() else None
        wide = self._codes(files, rows, cols)
        wide += np.uint8(OFFSETS[8])
        wide -= zeros[:, groups]
        return Codes(8, wide, halves)

    def to_json(self, path_text: PathText) -> Mapping[str, JSON]:
        parts = {
            "qweight": self.qweight,
            "qzeros": self.qzeros,
            "scales": self.scales,
            "group_of": self.group_of,
        }
        return {
            "scheme": self.scheme,
            "shape": list(self.shape),
            "group": self.group,
            "zero_offset": self.zero_offset,
            **{name: _part_to_json(part, path_text) if part else None for name, part in parts.items()},
        }

    @staticmethod
    def from_json(value: Any) -> "Int4Tensor":
        """The inverse; of its own making only."""
        return Int4Tensor(
            tuple(value["shape"]),
            value["scheme"],
            value["group"],
            value["zero_offset"],
            _part_from_json(value["qweight"]),
            _part_from_json(value["qzeros"]),
            _part_from_json(value["scales"]),
            value["group_of"] and _part_from_json(value["group_of"]),
        )

    def _codes(self, files: OpenFiles, rows: range, cols: range) -> Array:
        """uint8 [rows, cols]."""
        if self.scheme == "awq":
            codes = _unpack_outputs(files, self.qweight, cols, rows, AWQ_ORDER)
        else:
            word_rows = range(cols.start // WORD, -(-cols.stop // WORD))
            first = cols.start - word_rows.start * WORD
            codes = unpack_words(_rectangle(files, self.qweight, _WORDS, word_rows, rows), 0)
            codes = codes[first : first + len(cols)]
        return np.ascontiguousarray(codes.T)

    def _zeros(self, files: OpenFiles, rows: range) -> Array:
        """uint8 [rows, groups]: 0 to 16."""
        order = AWQ_ORDER if self.scheme == "awq" else tuple(range(WORD))
        zeros = _unpack_outputs(files, self.qzeros, range(self.qzeros.shape[0]), rows, order)
        return np.ascontiguousarray(zeros.T) + np.uint8(self.zero_offset)

    def _scales(self, files: OpenFiles, rows: range) -> Array:
        """float32 [rows, groups]."""
        dtype = numpy_dtype(self.scales.dtype)
        stored = _rectangle(files, self.scales, dtype, range(self.scales.shape[0]), rows)
        values = f32_from_bf16(stored) if self.scales.dtype == "BF16" else stored.astype(np.float32)
        return np.ascontiguousarray(values.T)

    def _groups(self, files: OpenFiles) -> Array:
        """The group of each input."""
        part = self.group_of
        if part is None:
            return np.arange(self.shape[1]) // self.group
        groups = np.empty(part.shape, np.dtype("<i4"))
        read_exactly(files.fd(part.file), part.file, part.offset, array_bytes(groups))
        if groups.min() < 0 or groups.max() >= self.scales.shape[0]:
            raise UserError(f"{part.file}: g_idx names a group that is not there; download the model again")
        return groups


def _unpack_outputs(
    files: OpenFiles, part: SourceTensor, rows: range, outputs: range, order: tuple[int, ...]
) -> Array:
    """[rows, outputs] of a part that has eight outputs in a word."""
    words = range(outputs.start // WORD, -(-outputs.stop // WORD))
    first = outputs.start - words.start * WORD
    return unpack_words(_rectangle(files, part, _WORDS, rows, words), 1, order)[
        :, first : first + len(outputs)
    ]


def _rectangle(
    files: OpenFiles, part: SourceTensor, dtype: "np.dtype[Any]", rows: range, cols: range
) -> Array:
    values = np.empty((len(rows), len(cols)), dtype)
    stride = part.shape[1] * dtype.itemsize
    offset = part.offset + rows.start * stride + cols.start * dtype.itemsize
    read_strided(files.fd(part.file), part.file, offset, stride, values)
    return values


def _part_to_json(part: SourceTensor, path_text: PathText) -> JSON:
    return [path_text(part.file), part.dtype, list(part.shape), part.offset, part.nbytes]


def _part_from_json(value: Any) -> SourceTensor:
    file, dtype, shape, offset, nbytes = value
    return SourceTensor(Path(file), dtype, tuple(shape), offset, nbytes)
