"""A tensor of a GGUF file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpiedge.kernels.panels import GROUP
from tpiedge.pack.dtypes import Array, SourceDtype
from tpiedge.pack.files import read_strided
from tpiedge.pack.sources.codes import Codes
from tpiedge.pack.sources.ggml_blocks import BLOCKS, EXACT_BITS, block_codes, block_dtype, decode_blocks
from tpiedge.pack.sources.imported_tensor import ImportedTensor, OpenFiles, PathText
from tpiedge.pack.specs import JSON


@dataclass(frozen=True)
class BlockTensor(ImportedTensor):
    """Rows of blocks of the type `kind` (ggml_blocks.py), from `offset` of `file` on.

    `paired` is 0, or the rows of a head whose rows lie in the order of a rotation of neighbours: row 2 i + a of a head
    is the row a * paired / 2 + i of the checkpoint. (A vector's numbers count as rows.)
    """

    file: Path
    kind: str
    offset: int
    paired: int = 0

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.file,)

    @property
    def dtype(self) -> SourceDtype:
        return block_dtype(self.kind)

    @property
    def row_nbytes(self) -> int:
        per_block, block_nbytes = BLOCKS[self.kind]
        return self.shape[-1] // per_block * block_nbytes

    def read(self, files: OpenFiles, rows: range, cols: range) -> Array:
        if len(self.shape) == 1:
            return self._read_vector(files)[None, cols.start : cols.stop]
        first, raw = self._blocks(files, rows, cols)
        return np.ascontiguousarray(decode_blocks(self.kind, raw)[:, first : first + len(cols)])

    def codes(self, files: OpenFiles, rows: range, cols: range, bits: int) -> Codes | None:
        if len(self.shape) == 1 or cols.start % GROUP or EXACT_BITS.get(self.kind, bits + 1) > bits:
            return None
        _, raw = self._blocks(files, rows, cols)
        found = block_codes(self.kind, raw, bits)
        return found[:, : len(cols)] if found and np.isfinite(found.scales_OG).all() else None

    def to_json(self, path_text: PathText) -> Mapping[str, JSON]:
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

    def _read_vector(self, files: OpenFiles) -> Array:
        _, raw = self._stored(files, range(1), range(self.shape[0]))
        values: Array = decode_blocks(self.kind, raw)[0]
        return values[self._stored_rows(range(len(values)))] if self.paired else values

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
        raw = np.empty((len(rows), len(blocks) * block_nbytes), np.uint8)
        offset = self.offset + rows.start * self.row_nbytes + blocks.start * block_nbytes
        read_strided(files.fd(self.file), self.file, offset, self.row_nbytes, raw)
        return cols.start - blocks.start * per_block, raw

    def _stored_rows(self, rows: range) -> Array:
        wanted = np.arange(rows.start, rows.stop)
        half, pair = np.divmod(wanted % self.paired, self.paired // 2)
        stored: Array = wanted // self.paired * self.paired + 2 * pair + half
        return stored
