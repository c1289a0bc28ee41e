"""Layout of quantised matrices in memory and on disk: panels of 16 outputs, in the order in which kernels read.

Every unit is stored on its own. A column-parallel matrix has units of outputs. A row-parallel matrix has units of
inputs. docs/kernels.md describes every bit. O outputs, I inputs, G groups of 32 inputs, P panels, N blocks of a panel.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

PANEL = 16  # outputs of a panel
GROUP = 32  # inputs that share a scale
HALF = GROUP // 2  # inputs that share a scale of q6_k

_STEP = 8
_LINE_BYTES = 64


class Scales(Enum):
    """Names what a group has beside its codes: the fields of an output's record, and their bytes for 16 outputs.

    The scale is s, d s (each half of a group has an own s), or 2**(e - 128). A minimum, which is added to every weight,
    is m, -z s, or -d_min m. All groups of a block have one d and one d_min.
    """

    PLAIN = ({"s": "<f2"}, 32)
    WITH_MINIMUM = ({"s": "<f2", "m": "<f2"}, 64)
    WITH_ZERO = ({"s": "<f2", "z": "u1"}, 48)
    TWO_LEVELS = ({"d": "<f2", "d_min": "<f2", "s": "u1", "m": "u1"}, 24)
    HALVES = ({"d": "<f2", "s": np.dtype(("i1", 2))}, 32)
    POWERS = ({"e": "u1"}, 16)

    def __init__(self, fields: Mapping[str, Any], group_nbytes: int) -> None:
        self.dtype: Final = np.dtype(list(fields.items()))
        self._group_nbytes = group_nbytes

    def header_nbytes(self, groups: int) -> int:
        """Returns the bytes before the codes of a block with so many groups."""
        if self is Scales.TWO_LEVELS:
            return _LINE_BYTES + _lines(groups + groups % 2, self._group_nbytes)
        return _lines(groups + (self is Scales.HALVES), self._group_nbytes)


@dataclass(frozen=True)
class PanelFormat:
    """Weights are scale * (code - offset) + minimum, or scale * table[code]. The native code knows the format by
    `number`."""

    name: str
    number: int
    bits: int
    scales: Scales
    offset: int = 0
    table: tuple[int, ...] = ()

    @property
    def groups(self) -> int:
        """Groups of a block."""
        if self.scales is Scales.WITH_MINIMUM:
            return 1
        return 2 if self.name in ("q4", "q8") else 8

    @property
    def values(self) -> Array:
        """The integer that each code stands for, int8."""
        codes = np.arange(1 << self.bits) - self.offset
        return np.array(self.table or codes, np.int8)

    def code_nbytes(self, inputs: int) -> int:
        """Returns the bytes of codes of a panel's group, or of a part of it."""
        filled = -(-inputs // _STEP) * _STEP
        planes = {5: 1, 6: 2}.get(self.bits, 0)
        return filled * PANEL * (8 if self.bits == 8 else 4) // 8 + planes * _LINE_BYTES


_FP4 = (0, 1, 2, 3, 4, 6, 8, 12)
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

FORMATS: Mapping[str, PanelFormat] = MappingProxyType(
    {
        one.name: one
        for one in (
            PanelFormat("q8", 0, 8, Scales.PLAIN, offset=128),
            PanelFormat("q4", 1, 4, Scales.PLAIN, offset=8),
            PanelFormat("q4_1", 2, 4, Scales.WITH_MINIMUM),
            PanelFormat("q4_zero", 3, 4, Scales.WITH_ZERO),
            PanelFormat("q4_k", 4, 4, Scales.TWO_LEVELS),
            PanelFormat("q5_0", 5, 5, Scales.PLAIN, offset=16),
            PanelFormat("q5_1", 6, 5, Scales.WITH_MINIMUM),
            PanelFormat("q5_k", 7, 5, Scales.TWO_LEVELS),
            PanelFormat("q6_k", 8, 6, Scales.HALVES, offset=32),
            PanelFormat("iq4_nl", 9, 4, Scales.PLAIN, table=_IQ4),
            PanelFormat("mxfp4", 10, 4, Scales.POWERS, table=(*_FP4, *(-one for one in _FP4))),
        )
    }
)
"""Name -> format. GGUF's types have the same names, but for Q8_0 (q8), Q4_0 (q4), and q4_zero, which has GPTQ's and
AWQ's zero points."""


@dataclass(frozen=True)
class PanelShape:
    format: PanelFormat
    outputs: int
    inputs: int

    @cached_property
    def panels(self) -> int:
        return -(-self.outputs // PANEL)

    @cached_property
    def groups(self) -> int:
        return -(-self.inputs // GROUP)

    @cached_property
    def panel_nbytes(self) -> int:
        return sum(count * self._block_nbytes(inputs) for count, inputs in self._blocks())

    @cached_property
    def nbytes(self) -> int:
        return self.panels * self.panel_nbytes

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Yields (blocks, inputs of each): whole blocks, then the rest."""
        whole, rest = divmod(self.inputs, self.format.groups * GROUP)
        if whole:
            yield whole, self.format.groups * GROUP
        if rest:
            yield 1, rest

    def _block_nbytes(self, inputs: int) -> int:
        groups, rest = divmod(inputs, GROUP)
        codes = groups * self.format.code_nbytes(GROUP) + (self.format.code_nbytes(rest) if rest else 0)
        return self.format.scales.header_nbytes(-(-inputs // GROUP)) + codes


@dataclass(frozen=True)
class Codes:
    """Weights in a format: `codes_OI` is uint8, `scales_OG` has the format's records."""

    format: PanelFormat
    codes_OI: Array
    scales_OG: Array

    @property
    def nbytes(self) -> int:
        return self.codes_OI.nbytes + self.scales_OG.nbytes

    def __getitem__(self, part: slice | tuple[slice, slice]) -> "Codes":
        """Slices outputs, or outputs and inputs. The first input must begin a group."""
        outputs, inputs = part if isinstance(part, tuple) else (part, slice(None))
        first, stop, _ = inputs.indices(self.codes_OI.shape[1])
        if first % GROUP:
            raise ValueError(f"input {first} is inside a group of {GROUP}")
        groups = slice(first // GROUP, -(-stop // GROUP))
        return Codes(self.format, self.codes_OI[outputs, first:stop], self.scales_OG[outputs, groups])

    def factors(self) -> tuple[Array, Array | None]:
        """Returns the scales, f32 [O, G, halves or 1], and the minimums, f32 [O, G], or None. All are exact."""
        kind, records = self.format.scales, self.scales_OG
        with np.errstate(all="ignore"):  # a damaged file has any scale
            if kind is Scales.POWERS:
                return np.ldexp(np.float32(1), records["e"].astype(np.int32) - 128)[..., None], None
            scales = records["s"].astype(np.float32).reshape(*records.shape, -1)
            if kind in (Scales.TWO_LEVELS, Scales.HALVES):
                scales *= records["d"].astype(np.float32)[..., None]
            if kind is Scales.WITH_MINIMUM:
                return scales, records["m"].astype(np.float32)
            if kind is Scales.WITH_ZERO:
                return scales, -scales[..., 0] * records["z"]
            if kind is Scales.TWO_LEVELS:
                return scales, -records["d_min"].astype(np.float32) * records["m"]
            return scales, None

    def finite(self) -> bool:
        """Returns whether every weight is a finite number. e = 255 stands for NaN."""
        scales, minimums = self.factors()
        if self.format.scales is Scales.POWERS and (self.scales_OG["e"] >= 253).any():
            return bool((self.scales_OG["e"] < 255).all() and np.isfinite(self.values()).all())
        return bool(np.isfinite(scales).all()) and (minimums is None or bool(np.isfinite(minimums).all()))

    def values(self) -> Array:
        """Returns the weights as float32 [O, I]: a sum is rounded once, all else is exact."""
        (outputs, inputs), groups = self.codes_OI.shape, self.scales_OG.shape[1]
        padded = np.zeros((outputs, groups * GROUP), np.float32)
        padded[:, :inputs] = self.format.values[self.codes_OI]
        scales, minimums = self.factors()
        with np.errstate(all="ignore"):
            padded.reshape(outputs, groups, scales.shape[2], -1)[:] *= scales[..., None]
            if minimums is not None:
                padded.reshape(outputs, groups, GROUP)[:] += minimums[:, :, None]
        return padded[:, :inputs]

    def squares(self) -> float:
        """Returns the sum of the squared weights."""
        steps = range(0, len(self.codes_OI), 64)  # so that their weights stay in the cache
        parts = (self[first : first + 64].values().reshape(-1) for first in steps)
        return float(sum(np.dot(part, part) for part in parts))

    def panels(self, shape: PanelShape) -> Array:
        """Returns a unit's panels as uint8 [shape.nbytes]. Raises ValueError if the codes are no such unit, or if
        groups of a block have different d."""
        if self.codes_OI.shape != (shape.outputs, shape.inputs) or self.format is not shape.format:
            raise ValueError(
                f"codes of {self.codes_OI.shape} in {self.format.name} are not a unit of {shape}"
            )
        outputs = shape.panels * PANEL
        scales = np.zeros((outputs, shape.groups), self.format.scales.dtype)
        scales[: shape.outputs] = self.scales_OG
        codes = np.zeros((outputs, shape.groups * GROUP), np.uint8)
        codes[: shape.outputs, : shape.inputs] = self.codes_OI
        found = np.empty((shape.panels, shape.panel_nbytes), np.uint8)
        for blocks_PNB, groups, inputs in _parts(found, shape):
            place = slice(groups.start * GROUP, groups.stop * GROUP)
            _write(blocks_PNB, scales[:, groups], codes[:, place], inputs, self.format)
        return found.reshape(-1)

    @staticmethod
    def of_panels(panels_PB: Array, shape: PanelShape) -> "Codes":
        """Reads panels as uint8 [panels, bytes]. Outputs that fill up the last panel are zeros."""
        outputs = len(panels_PB) * PANEL
        scales = np.zeros((outputs, shape.groups), shape.format.scales.dtype)
        codes = np.zeros((outputs, shape.groups * GROUP), np.uint8)
        for blocks_PNB, groups, inputs in _parts(panels_PB, shape):
            place = slice(groups.start * GROUP, groups.stop * GROUP)
            _read(blocks_PNB, scales[:, groups], codes[:, place], inputs, shape.format)
        return Codes(shape.format, codes[:, : shape.inputs], scales)


def dequantise_unit(data: Array, shape: PanelShape) -> Array:
    """Returns the panels as f32 [outputs, inputs]."""
    panels = data[: shape.nbytes].reshape(shape.panels, shape.panel_nbytes)
    step = max(1, (4 << 20) // (PANEL * 4 * max(1, shape.inputs)))  # the arrays of a part stay in the caches
    found = np.empty((shape.panels * PANEL, shape.inputs), np.float32)
    for first in range(0, shape.panels, step):
        codes = Codes.of_panels(panels[first : first + step], shape)
        found[first * PANEL : (first + step) * PANEL] = codes.values()
    return found[: shape.outputs]


def dequantise_output(panel: Array, shape: PanelShape, output: int) -> Array:
    """Returns a panel's output as f32 [inputs]."""
    codes = Codes.of_panels(panel[None, : shape.panel_nbytes], shape)
    row: Array = codes[output : output + 1].values()[0]
    return row


def _lines(count: int, nbytes: int) -> int:
    return -(-count * nbytes // _LINE_BYTES) * _LINE_BYTES


def _parts(panels_PB: Array, shape: PanelShape) -> Iterator[tuple[Array, slice, int]]:
    """Yields (view of equal blocks [panels, blocks, bytes], their groups, inputs of each)."""
    at = group = 0
    for count, inputs in shape._blocks():
        nbytes, groups = shape._block_nbytes(inputs), -(-inputs // GROUP)
        stop = at + count * nbytes
        blocks = panels_PB[:, at:stop].reshape(len(panels_PB), count, nbytes)
        yield blocks, slice(group, group + count * groups), inputs
        at, group = stop, group + count * groups


def _header(blocks_PNB: Array, groups: int, kind: Scales) -> Iterator[tuple[str, Array]]:
    """Yields (field, view of its bytes [panels, blocks, groups or 1, 16, bytes]) of what takes whole bytes."""
    panels, blocks = blocks_PNB.shape[:2]

    def at(start: int, count: int, itemsize: int) -> Array:
        part = blocks_PNB[..., start : start + count * PANEL * itemsize]
        return part.reshape(panels, blocks, count, PANEL, itemsize)

    if kind is Scales.POWERS:
        yield "e", at(0, groups, 1)
    elif kind is Scales.HALVES:
        yield "d", at(0, 1, 2)
        # The halves of a group follow each other.
        yield "s", at(32, 2 * groups, 1).reshape(panels, blocks, groups, 2, PANEL).swapaxes(3, 4)
    elif kind is Scales.TWO_LEVELS:
        yield "d", at(0, 1, 2)
        yield "d_min", at(32, 1, 2)
    else:
        yield "s", at(0, groups, 2)
        if kind is Scales.WITH_MINIMUM:
            yield "m", at(32, 1, 2)
        elif kind is Scales.WITH_ZERO:
            yield "z", at(32 * groups, groups, 1)


def _sixths(blocks_PNB: Array, groups: int) -> Array:
    """Returns a view of the six-bit scales and minimums of a two-level block, [panels, blocks, pairs, 3, 16]: the lower
    four bits of both of the first group, of the second, then the upper two of all four."""
    pairs = -(-groups // 2)
    part = blocks_PNB[..., _LINE_BYTES : _LINE_BYTES + 48 * pairs]
    return part.reshape(*blocks_PNB.shape[:2], pairs, 3, PANEL)


def _write(blocks_PNB: Array, scales_OG: Array, codes_OI: Array, inputs: int, form: PanelFormat) -> None:
    panels, blocks = blocks_PNB.shape[:2]
    groups, kind = -(-inputs // GROUP), form.scales
    blocks_PNB[:] = 0
    records = scales_OG.reshape(panels, PANEL, blocks, groups).transpose(0, 2, 3, 1)
    for name, view in _header(blocks_PNB, groups, kind):
        values = np.ascontiguousarray(records[name])
        if view.shape[2] < groups:
            if (values.view("<u2") != values[:, :, :1].view("<u2")).any():
                raise ValueError(f"groups of a block of {form.name} have different {name}")
            values = np.ascontiguousarray(values[:, :, :1])
        view[:] = values.view(np.uint8).reshape(view.shape)
    if kind is Scales.TWO_LEVELS:
        padded = np.zeros((2, panels, blocks, -(-groups // 2), 2, PANEL), np.uint8)
        for place, name in enumerate(("s", "m")):
            padded[place].reshape(panels, blocks, -1, PANEL)[:, :, :groups] = records[name]
        s, m = padded
        packed = _sixths(blocks_PNB, groups)
        packed[..., :2, :] = s & 15 | (m & 15) << 4
        upper = s >> 4 | m >> 4 << 2
        packed[..., 2, :] = upper[..., 0, :] | upper[..., 1, :] << 4
    _codes(blocks_PNB, codes_OI, inputs, form, write=True)


def _read(blocks_PNB: Array, scales_OG: Array, codes_OI: Array, inputs: int, form: PanelFormat) -> None:
    panels, blocks = blocks_PNB.shape[:2]
    groups, kind = -(-inputs // GROUP), form.scales
    records = scales_OG.reshape(panels, PANEL, blocks, groups).transpose(0, 2, 3, 1)
    for name, view in _header(blocks_PNB, groups, kind):
        field = records[name]
        values = np.ascontiguousarray(view).view(field.dtype)
        field[:] = values.reshape(*values.shape[:4], *field.shape[4:])
    if kind is Scales.TWO_LEVELS:
        packed = _sixths(blocks_PNB, groups)
        lower, upper = packed[..., :2, :], np.stack((packed[..., 2, :] & 15, packed[..., 2, :] >> 4), 3)
        for name, low, high in (("s", lower & 15, upper & 3), ("m", lower >> 4, upper >> 2)):
            records[name][:] = (low | high << 4).reshape(panels, blocks, -1, PANEL)[:, :, :groups]
    _codes(blocks_PNB, codes_OI, inputs, form, write=False)


def _codes(blocks_PNB: Array, codes_OI: Array, inputs: int, form: PanelFormat, *, write: bool) -> None:
    """Moves codes to or from blocks whose headers are done (docs/kernels.md)."""
    # A line has 4 inputs of 8 bits, or 8 of fewer, the second 4 in the upper bits. Lines before have bits above four.
    panels, blocks = blocks_PNB.shape[:2]
    at = form.scales.header_nbytes(-(-inputs // GROUP))
    by_group = codes_OI.reshape(panels, PANEL, blocks, -1, GROUP)
    for group in range(by_group.shape[3]):
        filled = -(-min(GROUP, inputs - group * GROUP) // _STEP) * _STEP
        end = at + form.code_nbytes(filled)
        stored = blocks_PNB[..., at:end].reshape(panels, blocks, -1, PANEL, 4)
        # [panels, blocks, fours of inputs, 16, 4]
        codes = (
            by_group[:, :, :, group, :filled].reshape(panels, PANEL, blocks, -1, 4).transpose(0, 2, 3, 1, 4)
        )
        if form.bits == 8:
            if write:
                stored[:] = codes
            else:
                codes[:] = stored
        else:
            fours = filled // 4
            planes, nibbles = stored[:, :, : -fours // 2], stored[:, :, -fours // 2 :]
            if write:
                nibbles[:] = codes[:, :, ::2] & 15 | (codes[:, :, 1::2] & 15) << 4
            else:
                codes[:, :, ::2] = nibbles & 15
                codes[:, :, 1::2] = nibbles >> 4
            wide = form.bits - 4
            for four in range(fours if wide else 0):
                line, shift = divmod(four, 8 // wide)
                shift *= wide
                if write:
                    planes[:, :, line] |= (codes[:, :, four] >> 4) << shift
                else:
                    codes[:, :, four] |= (planes[:, :, line] >> shift & (1 << wide) - 1) << 4
        at = end
