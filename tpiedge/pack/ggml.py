"""Tensors of GGUF files, and the blocks in which they store weights.

A row is a whole number of blocks. Q4_0: 32 weights, an f16 scale d, then 16 bytes, byte j with the code of weight j in
its lower four bits and that of weight 16 + j in its upper four; the weight is d * (code - 8). Q8_0: an f16 scale d and
32 signed bytes; the weight is d * byte. These are the numbers of a pack's q4 and q8. Other quantised blocks become f32
here by the `gguf` package, whose numpy code is their reference.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tpiedge.kernels.panels import GROUP, Array
from tpiedge.pack.codes import Codes
from tpiedge.pack.dtypes import SourceDtype, numpy_dtype
from tpiedge.pack.source import OpenFiles, PathText
from tpiedge.pack.specs import JSON

_PLAIN: Mapping[str, SourceDtype] = MappingProxyType({"F32": "F32", "F16": "F16", "BF16": "BF16"})

BLOCKS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2),
        "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
        "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
        "IQ4_NL": (32, 18), "IQ4_XS": (256, 136),
    }
)  # fmt: skip
"""Type -> (weights, bytes) of a block."""

EXACT_BITS: Mapping[str, int] = MappingProxyType({"Q4_0": 4, "Q8_0": 8})
"""Type -> the bits of the pack's weights that hold it without a loss."""


@dataclass(frozen=True)
class BlockTensor:
    """Rows of blocks of the type `kind`, from `offset` of `file` on.

    `paired` is 0, or the rows of a head whose rows lie in the order of a rotation of neighbours: row 2 i + a of a head
    is the row a * paired / 2 + i of the checkpoint. (A vector's numbers count as rows.)
    """

    shape: tuple[int, ...]
    file: Path
    kind: str
    offset: int
    paired: int = 0

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.file,)

    @property
    def dtype(self) -> SourceDtype:
        return _PLAIN.get(self.kind, "F32")

    @property
    def row_nbytes(self) -> int:
        per_block, block_nbytes = BLOCKS[self.kind]
        return self.shape[-1] // per_block * block_nbytes

    def read(self, files: OpenFiles, rows: range, cols: range) -> Array:
        if len(self.shape) == 1:
            _, raw = self._stored(files, range(1), range(self.shape[0]))
            values: Array = _decoded(self.kind, raw)
            if self.paired:
                values = values[:, self._stored_rows(range(self.shape[0]))]
            return values[:, cols.start : cols.stop]
        first, raw = self._blocks(files, rows, cols)
        return np.ascontiguousarray(_decoded(self.kind, raw)[:, first : first + len(cols)])

    def codes(self, files: OpenFiles, rows: range, cols: range, bits: int) -> Codes | None:
        if len(self.shape) == 1 or cols.start % GROUP or EXACT_BITS.get(self.kind, bits + 1) > bits:
            return None
        _, raw = self._blocks(files, rows, cols)
        found = _codes(self.kind, raw)
        if found.bits < bits:
            found = Codes(8, found.codes_OI + np.uint8(128 - 8), found.scales_OG)
        return found[:, : len(cols)] if np.isfinite(found.scales_OG).all() else None

    def to_json(self, path_text: PathText) -> JSON:
        return {
            "blocks": self.kind,
            "shape": list(self.shape),
            "file": path_text(self.file),
            "offset": self.offset,
            "paired": self.paired,
        }

    @staticmethod
    def from_json(value: Any) -> "BlockTensor":
        """The inverse; of its own making only."""
        place = Path(value["file"]), value["blocks"], value["offset"], value["paired"]
        return BlockTensor(tuple(value["shape"]), *place)

    def _blocks(self, files: OpenFiles, rows: range, cols: range) -> tuple[int, Array]:
        """(where `cols` begins in them, the blocks that hold the rectangle), rows in the checkpoint's order."""
        if not self.paired:
            return self._stored(files, rows, cols)
        first_row = rows.start // self.paired * self.paired
        heads = range(first_row, -(-rows.stop // self.paired) * self.paired)
        first, raw = self._stored(files, heads, cols)
        return first, raw[self._stored_rows(rows) - first_row]

    def _stored(self, files: OpenFiles, rows: range, cols: range) -> tuple[int, Array]:
        per_block, block_nbytes = BLOCKS[self.kind]
        blocks = range(cols.start // per_block, -(-cols.stop // per_block))
        offset = self.offset + rows.start * self.row_nbytes + blocks.start * block_nbytes
        shape = len(rows), len(blocks) * block_nbytes
        raw = files[self.file].strided(offset, self.row_nbytes, shape, np.dtype(np.uint8))
        return cols.start - blocks.start * per_block, raw

    def _stored_rows(self, rows: range) -> Array:
        wanted = np.arange(rows.start, rows.stop)
        half, pair = np.divmod(wanted % self.paired, self.paired // 2)
        stored: Array = wanted // self.paired * self.paired + 2 * pair + half
        return stored


def _decoded(kind: str, raw_RB: Array) -> Array:
    """uint8 [rows, bytes of whole blocks] -> the weights [rows, cols], F32, F16 or bits of BF16."""
    if kind in _PLAIN:
        plain: Array = raw_RB.view(numpy_dtype(kind))
        return plain
    if kind in EXACT_BITS:
        return _codes(kind, raw_RB).values()
    from gguf import GGMLQuantizationType  # slow to import, and seldom needed
    from gguf.quants import dequantize

    with np.errstate(all="ignore"):  # a damaged file has any scale
        values: Array = dequantize(raw_RB, GGMLQuantizationType[kind])
    return values


def _codes(kind: str, raw_RB: Array) -> Codes:
    rows = raw_RB.shape[0]
    blocks = raw_RB.reshape(rows, -1, BLOCKS[kind][1])
    scales = np.ascontiguousarray(blocks[:, :, :2]).view("<f2").reshape(rows, -1)
    data = blocks[:, :, 2:]
    if kind == "Q8_0":
        return Codes(8, (data ^ np.uint8(128)).reshape(rows, -1), scales)
    halves = np.concatenate((data & np.uint8(15), data >> np.uint8(4)), axis=2)
    return Codes(4, halves.reshape(rows, -1, GROUP).reshape(rows, -1), scales)
