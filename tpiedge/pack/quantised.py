"""Reads tensors that other programs have quantised, from GGUF files and from GPTQ, AWQ and MXFP4 checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import msgspec
import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import FORMATS, GROUP, Array, Codes, PanelFormat, Scales
from tpiedge.pack.dtypes import NUMPY, SourceDtype, f32_from_bf16
from tpiedge.pack.source import OpenFiles, SourceTensor, StoredTensor, TensorColumns, TensorRows
from tpiedge.pack.specs import MatrixSpec

BLOCKS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2),
        "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
        "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
        "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "MXFP4": (32, 17),
    }
)  # fmt: skip
"""Type -> (weights, bytes) of a block."""

FORMAT_OF: Mapping[str, PanelFormat] = MappingProxyType(
    {"Q8_0": FORMATS["q8"], "Q4_0": FORMATS["q4"]}
    | {kind: FORMATS[kind.lower()] for kind in BLOCKS if kind.lower() in FORMATS}
)
"""Type -> the panels' format that holds the type exactly."""


def holds_exactly(form: PanelFormat, kind: str, matrix: MatrixSpec | None = None) -> bool:
    """Whether panels in the format hold all weights of a type exactly. A unit of inputs of the `matrix` must not have
    blocks that begin in the middle of the type's."""
    found = FORMAT_OF.get(kind) is form or (kind == "Q4_0" and form is FORMATS["q8"])
    return found and (matrix is None or cut_at_blocks(matrix, BLOCKS[kind][0]))


def cut_at_blocks(matrix: MatrixSpec, block: int) -> bool:
    """Whether no unit has parts of two blocks of so many inputs in one of its own."""
    unit = matrix.rows_per_unit
    if not matrix.transposed or matrix.rows <= unit or unit % block == 0:
        return True
    return block % unit == 0 and unit % GROUP == 0


class BlockTensor(msgspec.Struct, frozen=True):
    """A tensor whose rows consist of blocks of GGUF's type `kind`. If `paired` is not 0, `read` permutes the rows or a
    vector's numbers.

    Types of FORMAT_OF keep their codes; blocks of other types become f32.
    """

    kind: str = msgspec.field(name="blocks")
    shape: tuple[int, ...]
    file: Path
    offset: int
    #: The rows of a head if they are stored in the order for RoPE on neighbouring pairs, else 0. Stored row 2 i + a of
    #: a head is row a * paired / 2 + i of the checkpoint.
    paired: int = 0

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.file,)

    @property
    def dtype(self) -> SourceDtype:
        return cast(SourceDtype, self.kind) if self.kind in NUMPY else "F32"

    @property
    def row_nbytes(self) -> int:
        per_block, block_nbytes = BLOCKS[self.kind]
        return self.shape[-1] // per_block * block_nbytes

    def shifted(self, shift: float) -> "BlockTensor":
        return ShiftedTensor(self.kind, self.shape, self.file, self.offset, self.paired, shift)

    def read(self, files: OpenFiles, rows: range, cols: range) -> Array:
        if len(self.shape) == 1:
            _, raw = self._stored(files, range(1), range(self.shape[0]))
            values: Array = _decoded(self.kind, raw)
            if self.paired:
                values = values[:, self._stored_rows(range(self.shape[0]))]
            return values[:, cols.start : cols.stop]
        first, raw = self._blocks(files, rows, cols)
        return np.ascontiguousarray(_decoded(self.kind, raw)[:, first : first + len(cols)])

    def codes(self, files: OpenFiles, rows: range, cols: range, form: PanelFormat) -> Codes | None:
        if len(self.shape) == 1 or cols.start % GROUP or not holds_exactly(form, self.kind):
            return None
        first, raw = self._blocks(files, rows, cols)
        found = _codes(self.kind, raw)
        if found.format is not form:
            found = Codes(form, found.codes_OI + np.uint8(form.offset - found.format.offset), found.scales_OG)
        found = found[:, first : first + len(cols)]
        return found if found.finite() else None

    def _blocks(self, files: OpenFiles, rows: range, cols: range) -> tuple[int, Array]:
        """Returns (place of `cols.start` in its block, the rectangle's blocks)."""
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


class ShiftedTensor(BlockTensor, frozen=True):
    """A vector that is stored as f32(w + shift), read as f32 w.

    w + shift in f32 is the stored number again, if that is from shift / 2 to 2**24 or was made of a bf16 w.
    """

    shift: float = 0.0

    @property
    def dtype(self) -> SourceDtype:
        return "F32"

    def read(self, files: OpenFiles, rows: range, cols: range) -> Array:
        stored = super().read(files, rows, cols)
        values = f32_from_bf16(stored) if self.kind == "BF16" else stored.astype(np.float32)
        shifted: Array = values - np.float32(self.shift)
        return shifted


def _decoded(kind: str, raw_RB: Array) -> Array:
    """Decodes uint8 [rows, bytes of blocks] to weights [rows, cols]."""
    if kind in NUMPY:
        plain: Array = raw_RB.view(NUMPY[kind])
        return plain
    if kind in FORMAT_OF:
        return _numbers(_codes(kind, raw_RB))
    from gguf import GGMLQuantizationType  # slow to import, and seldom needed
    from gguf.quants import dequantize

    with np.errstate(all="ignore"):  # a damaged file has any scale
        values = dequantize(raw_RB, GGMLQuantizationType[kind])
    return values


def _numbers(codes: Codes) -> Array:
    values = codes.values()
    if codes.format.scales is Scales.POWERS:
        values[np.repeat(codes.scales_OG["e"] == 255, GROUP, axis=1)] = np.nan
    return values


def _codes(kind: str, raw_RB: Array) -> Codes:
    """Reads blocks, uint8 [rows, bytes], of a type of FORMAT_OF (ggml-common.h has the types' structs)."""
    (per_block, nbytes), form, rows = BLOCKS[kind], FORMAT_OF[kind], len(raw_RB)
    blocks = raw_RB.reshape(rows, -1, nbytes)
    scales = np.zeros((rows, blocks.shape[1], per_block // GROUP), form.scales.dtype)

    def halves(at: int) -> Array:
        return np.ascontiguousarray(blocks[:, :, at : at + 2]).view("<f2")

    if form.scales is Scales.POWERS:
        scales["e"], at = blocks[:, :, :1], 1
    elif form.scales is Scales.HALVES:
        scales["d"], at = halves(nbytes - 2), 0
        scales["s"] = blocks[:, :, -18:-2].view(np.int8).reshape(*scales.shape, 2)
    elif form.scales is Scales.TWO_LEVELS:
        scales["d"], scales["d_min"], at = halves(0), halves(2), 16
        first, second, both = (blocks[:, :, start : start + 4] for start in (4, 8, 12))
        scales["s"][..., :4], scales["m"][..., :4] = first & 63, second & 63
        scales["s"][..., 4:] = both & 15 | first >> 6 << 4
        scales["m"][..., 4:] = both >> 4 | second >> 6 << 4
    else:
        scales["s"], at = halves(0), 2
        if form.scales is Scales.WITH_MINIMUM:
            scales["m"], at = halves(2), 4
    return Codes(form, _places(form, blocks, at).reshape(rows, -1), scales.reshape(rows, -1))


def _places(form: PanelFormat, blocks: Array, at: int) -> Array:
    """Reads the codes of blocks, in order, that begin at byte `at`."""
    data: Array = blocks[:, :, at:]
    shape = data.shape[:2]
    if form.bits == 8:
        signed: Array = data ^ np.uint8(128)
        return signed
    upper: Array = np.zeros(1, np.uint8)
    if form.scales is Scales.HALVES:  # of 128 weights: 64 bytes, then two bits of each in 32
        upper = _fields(data[:, :, 128:192].reshape(*shape, 2, 1, 32), 2)
        nibbles = _fields(data[:, :, :128].reshape(*shape, 2, 1, 64), 4).reshape(upper.shape)
    elif form.scales is Scales.TWO_LEVELS:
        if form.bits == 5:
            upper, data = _fields(data[:, :, None, :32], 1), data[:, :, 32:]
        nibbles = _fields(data.reshape(*shape, 4, 1, 32), 4).reshape(*shape, 8, 32)
    else:
        if form.bits == 5:
            upper, data = np.unpackbits(data[:, :, :4], axis=2, bitorder="little"), data[:, :, 4:]
        nibbles = _fields(data[:, :, None], 4).reshape(*shape, -1)
    found: Array = nibbles | upper << 4
    return found


def _fields(data: Array, bits: int) -> Array:
    """Returns the fields of bytes [..., 1, n] as [..., 8 / bits, n], the lowest first."""
    shifts = np.arange(0, 8, bits).astype(np.uint8)[:, None]
    found: Array = data >> shifts & np.uint8((1 << bits) - 1)
    return found


WORD = 8
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def unpack_words(words: Array, order: tuple[int, ...] = tuple(range(WORD))) -> Array:
    """Unpacks uint32 [a, b] to uint8 [a, 8 b]. Nibble k becomes code `order[k]`."""
    codes = np.empty((*words.shape, WORD), np.uint8)
    for nibble, place in enumerate(order):
        codes[:, :, place] = (words >> np.uint32(4 * nibble)) & np.uint32(15)
    return codes.reshape(len(words), -1)


_WORDS = np.dtype("<u4")


class Int4Tensor(msgspec.Struct, frozen=True):
    """A checkpoint's matrix of O outputs and I inputs, row-major, little-endian. Weight (o, i) is scales[g, o] * (code
    - zero point). The group g of input i is `group_of[i]`, or i // group without that table.
    """

    #: "gptq" or "awq".
    scheme: str
    shape: tuple[int, ...]
    group: int
    #: Added to every stored zero point.
    zero_offset: int
    #: GPTQ: nibble k (bits 4 k to 4 k + 3) of word (r, o) of [I / 8, O] holds the code of input 8 r + k. AWQ ("gemm"):
    #: nibble k of word (i, c) of [I, O / 8] holds the code of output 8 c + AWQ_ORDER[k].
    qweight: SourceTensor
    #: int32 [G, O / 8]: a word has eight zero points, in AWQ in the order AWQ_ORDER.
    qzeros: SourceTensor
    #: f16 [G, O].
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
        for first in range(0, len(rows), 64):  # the factors of all rows would take twice as much again
            part = slice(first, first + 64)
            values[part] -= zeros[part, groups]
            with np.errstate(all="ignore"):  # a damaged file has any scale
                values[part] *= scales[part, groups]
        return values

    def codes(self, files: OpenFiles, rows: range, cols: range, form: PanelFormat) -> Codes | None:
        groups = self._groups(files)[cols.start : cols.stop]
        if not _whole(groups):
            return None
        firsts = groups[::GROUP]
        scales, zeros = self._scales(files, rows)[:, firsts], self._zeros(files, rows)[:, firsts]
        if not _are_halves(scales):
            return None
        records = np.zeros(scales.shape, form.scales.dtype)
        records["s"] = scales
        codes = self._codes(files, rows, cols)
        if form is FORMATS["q4_zero"]:
            records["z"] = zeros
        elif form is FORMATS["q8"]:
            codes += np.uint8(form.offset)
            codes -= np.repeat(zeros, GROUP, axis=1)[:, : len(groups)]
        elif form is not FORMATS["q4"] or (zeros != form.offset).any():
            return None
        return Codes(form, codes, records)

    def fits(self, files: OpenFiles) -> bool:
        """Whether panels of 4 bits can have the groups and the scales. Scales in f16 are not read."""
        is_f16 = self.scales.dtype == "F16"
        return _whole(self._groups(files)) and (
            is_f16 or _are_halves(self._scales(files, range(self.shape[0])))
        )

    def _codes(self, files: OpenFiles, rows: range, cols: range) -> Array:
        if self.scheme == "awq":
            return np.ascontiguousarray(_unpack_outputs(files, self.qweight, cols, rows, AWQ_ORDER).T)
        word_rows = range(cols.start // WORD, -(-cols.stop // WORD))
        first = cols.start - word_rows.start * WORD
        codes = unpack_words(self.qweight.rectangle(files, word_rows, rows, _WORDS).T)
        return np.ascontiguousarray(codes[:, first : first + len(cols)])

    def _zeros(self, files: OpenFiles, rows: range) -> Array:
        """Returns the zero points, 0 to 16, as uint8 [rows, groups]."""
        order = AWQ_ORDER if self.scheme == "awq" else tuple(range(WORD))
        zeros = _unpack_outputs(files, self.qzeros, range(self.qzeros.shape[0]), rows, order)
        return np.ascontiguousarray(zeros.T) + np.uint8(self.zero_offset)

    def _scales(self, files: OpenFiles, rows: range) -> Array:
        dtype = NUMPY[self.scales.dtype]
        stored = self.scales.rectangle(files, range(self.scales.shape[0]), rows, dtype)
        values = f32_from_bf16(stored) if self.scales.dtype == "BF16" else stored.astype(np.float32)
        return np.ascontiguousarray(values.T)

    def _groups(self, files: OpenFiles) -> Array:
        part = self.group_of
        if part is None:
            return np.arange(self.shape[1]) // self.group
        groups = files[part.file].array(part.offset, part.shape, np.dtype("<i4"))
        if groups.min() < 0 or groups.max() >= self.scales.shape[0]:
            raise UserError(f"{part.file}: g_idx names a group that is not there; download the model again")
        return groups


class MXFP4Tensor(msgspec.Struct, frozen=True):
    """Every `step`-th row, from row `first` on, of a checkpoint's matrix in MXFP4. Byte b of a row of `nibbles`, u8
    [outputs, I / 2], has the codes of inputs 2 b (its low half) and 2 b + 1. `exponents`: u8 [outputs, I / 32]."""

    nibbles: SourceTensor
    exponents: SourceTensor
    first: int
    step: int

    @property
    def shape(self) -> tuple[int, ...]:
        rows, nbytes = self.nibbles.shape
        return rows // self.step, 2 * nbytes

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys((self.nibbles.file, self.exponents.file)))

    @property
    def dtype(self) -> SourceDtype:
        return "F32"

    def read(self, files: OpenFiles, rows: range, cols: range) -> Array:
        first = cols.start % GROUP
        values = _numbers(self._groups(files, rows, cols))
        return np.ascontiguousarray(values[:, first : first + len(cols)])

    def codes(self, files: OpenFiles, rows: range, cols: range, form: PanelFormat) -> Codes | None:
        if form is not FORMATS["mxfp4"] or cols.start % GROUP:
            return None
        found = self._groups(files, rows, cols)[:, : len(cols)]
        return found if found.finite() else None

    def _groups(self, files: OpenFiles, rows: range, cols: range) -> Codes:
        groups = range(cols.start // GROUP, -(-cols.stop // GROUP))
        stored = range(self.first + self.step * rows.start, self.first + self.step * (rows.stop - 1) + 1)
        half, form = GROUP // 2, FORMATS["mxfp4"]
        bytes_ = range(half * groups.start, half * groups.stop)
        raw, exponents = (
            part.rectangle(files, stored, own, np.dtype(np.uint8))[:: self.step]
            for part, own in ((self.nibbles, bytes_), (self.exponents, groups))
        )
        scales = np.zeros(exponents.shape, form.scales.dtype)
        scales["e"] = exponents
        return Codes(form, np.stack((raw & 15, raw >> 4), -1).reshape(len(rows), -1), scales)


def _whole(groups: Array) -> bool:
    """Whether every GROUP inputs share a group."""
    return np.array_equal(np.repeat(groups[::GROUP], GROUP)[: len(groups)], groups)


def _are_halves(scales: Array) -> bool:
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16)
    return np.array_equal(halves.astype(np.float32), scales) and bool(np.isfinite(halves).all())


def _unpack_outputs(
    files: OpenFiles, part: SourceTensor, rows: range, outputs: range, order: tuple[int, ...]
) -> Array:
    """Reads codes, [rows, outputs], from words of eight outputs."""
    words = range(outputs.start // WORD, -(-outputs.stop // WORD))
    first = outputs.start - words.start * WORD
    return unpack_words(part.rectangle(files, rows, words, _WORDS), order)[:, first : first + len(outputs)]


def tensor_from_json(value: Any) -> StoredTensor:
    """Returns the tensor from which `tensor_to_json` made `value`. Raises msgspec.ValidationError."""
    kind: type[StoredTensor] = SourceTensor
    if isinstance(value, dict) and "rows_of" in value:
        return TensorRows(tensor_from_json(value["rows_of"]), int(value["first"]), tuple(value["shape"]))
    if isinstance(value, dict) and "columns_of" in value:
        inner = tensor_from_json(value["columns_of"])
        return TensorColumns(inner, int(value["first"]), int(value["step"]), bool(value["turned"]))
    if isinstance(value, dict):
        of_keys: Mapping[str, type[StoredTensor]] = {
            "shift": ShiftedTensor,
            "blocks": BlockTensor,
            "nibbles": MXFP4Tensor,
        }
        kind = next((one for key, one in of_keys.items() if key in value), Int4Tensor)
    return msgspec.convert(value, kind, dec_hook=lambda path, text: path(text))
