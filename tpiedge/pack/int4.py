"""How GPTQ and AWQ checkpoints store a matrix of 4-bit weights, as the libraries of these names write it.

For O outputs and I inputs in G groups of inputs, all of them row-major and little-endian:

- `scales` [G, O], f16. `qzeros` [G, O / 8], int32: eight outputs' zero points in a word.
- GPTQ: `qweight` [I / 8, O], int32: word (r, o) holds the codes of inputs 8 r + k in bits 4 k to 4 k + 3. So does a
  word of qzeros for its outputs, but each is one less than the zero point (not so in the format "gptq_v2").
- AWQ ("gemm"): `qweight` [I, O / 8], int32: word (i, c) holds the code of output 8 c + AWQ_ORDER[k] in bits 4 k to
  4 k + 3. So does a word of qzeros.
- The weight of o and i is scales[g, o] * (code - zero point), where g is i // group or, with "act order", g_idx[i].
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import GROUP, OFFSETS, Array
from tpiedge.pack.codes import Codes
from tpiedge.pack.dtypes import SourceDtype, f32_from_bf16, numpy_dtype
from tpiedge.pack.source import OpenFiles, PathText, SourceTensor
from tpiedge.pack.specs import JSON

WORD = 8
"""Codes in a word."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def unpack_words(words: Array, axis: int, order: tuple[int, ...] = tuple(range(WORD))) -> Array:
    """uint32 [a, b] -> codes uint8, eight times as many along `axis`; nibble k becomes code `order[k]` of its word."""
    shape = (words.shape[0], WORD, words.shape[1]) if axis == 0 else (*words.shape, WORD)
    codes = np.empty(shape, np.uint8)
    for nibble, place in enumerate(order):
        part = ((words >> np.uint32(4 * nibble)) & np.uint32(15)).astype(np.uint8)
        if axis == 0:
            codes[:, place] = part
        else:
            codes[:, :, place] = part
    return codes.reshape(-1, words.shape[1]) if axis == 0 else codes.reshape(words.shape[0], -1)


_WORDS = np.dtype("<u4")


@dataclass(frozen=True)
class Int4Tensor:
    """The parts of a matrix of a GPTQ or AWQ checkpoint; `scheme` is "gptq" or "awq".

    `group` inputs share a scale, `zero_offset` is added to a stored zero point. `group_of` holds the group of each
    input where they do not lie in order.
    """

    shape: tuple[int, ...]
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
        for first in range(0, len(rows), 64):  # the factors of all rows would take as much again, twice
            part = slice(first, first + 64)
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

    def to_json(self, path_text: PathText) -> JSON:
        return {
            "scheme": self.scheme,
            "shape": list(self.shape),
            "group": self.group,
            "zero_offset": self.zero_offset,
            "qweight": self.qweight.to_json(path_text),
            "qzeros": self.qzeros.to_json(path_text),
            "scales": self.scales.to_json(path_text),
            "group_of": self.group_of.to_json(path_text) if self.group_of else None,
        }

    @staticmethod
    def from_json(value: Any) -> "Int4Tensor":
        """The inverse; of its own making only."""
        return Int4Tensor(
            tuple(value["shape"]),
            value["scheme"],
            value["group"],
            value["zero_offset"],
            SourceTensor.from_json(value["qweight"]),
            SourceTensor.from_json(value["qzeros"]),
            SourceTensor.from_json(value["scales"]),
            value["group_of"] and SourceTensor.from_json(value["group_of"]),
        )

    def _codes(self, files: OpenFiles, rows: range, cols: range) -> Array:
        """uint8 [rows, cols]."""
        if self.scheme == "awq":
            codes = _unpack_outputs(files, self.qweight, cols, rows, AWQ_ORDER)
        else:
            word_rows = range(cols.start // WORD, -(-cols.stop // WORD))
            first = cols.start - word_rows.start * WORD
            codes = unpack_words(self.qweight.rectangle(files, word_rows, rows, _WORDS), 0)
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
        stored = self.scales.rectangle(files, range(self.scales.shape[0]), rows, dtype)
        values = f32_from_bf16(stored) if self.scales.dtype == "BF16" else stored.astype(np.float32)
        return np.ascontiguousarray(values.T)

    def _groups(self, files: OpenFiles) -> Array:
        """The group of each input."""
        part = self.group_of
        if part is None:
            return np.arange(self.shape[1]) // self.group
        groups = files[part.file].array(part.offset, part.shape, np.dtype("<i4"))
        if groups.min() < 0 or groups.max() >= self.scales.shape[0]:
            raise UserError(f"{part.file}: g_idx names a group that is not there; download the model again")
        return groups


def _unpack_outputs(
    files: OpenFiles, part: SourceTensor, rows: range, outputs: range, order: tuple[int, ...]
) -> Array:
    """[rows, outputs] of a part that has eight outputs in a word."""
    words = range(outputs.start // WORD, -(-outputs.stop // WORD))
    first = outputs.start - words.start * WORD
    return unpack_words(part.rectangle(files, rows, words, _WORDS), 1, order)[:, first : first + len(outputs)]
