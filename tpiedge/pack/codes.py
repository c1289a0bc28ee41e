"""Weights that are integers already, as other quantised formats have them: into a unit's bytes without a loss."""

from dataclasses import dataclass

import numpy as np

from tpiedge.kernels.panels import GROUP, OFFSETS, PANEL, Array, PanelShape, join_panels


@dataclass(frozen=True)
class Codes:
    """O outputs x I inputs: the weight of o and i is scales_OG[o, i // 32] * (codes_OI[o, i] - OFFSETS[bits]).

    `codes_OI` is uint8, `scales_OG` float16.
    """

    bits: int
    codes_OI: Array
    scales_OG: Array

    @property
    def nbytes(self) -> int:
        return self.codes_OI.nbytes + self.scales_OG.nbytes

    def __getitem__(self, part: slice | tuple[slice, slice]) -> "Codes":
        """The codes of some outputs, or of some outputs and inputs, cut as an array is; inputs begin with a group."""
        outputs, inputs = part if isinstance(part, tuple) else (part, slice(None))
        first, stop, _ = inputs.indices(self.codes_OI.shape[1])
        if first % GROUP:
            raise ValueError(f"input {first} is inside a group of {GROUP}")
        groups = slice(first // GROUP, -(-stop // GROUP))
        return Codes(self.bits, self.codes_OI[outputs, first:stop], self.scales_OG[outputs, groups])

    def values(self) -> Array:
        """The weights, float32 [O, I]: products of 11 and 8 bits, so exact."""
        outputs, inputs = self.codes_OI.shape
        groups = self.scales_OG.shape[1]
        padded = np.zeros((outputs, groups * GROUP), np.float32)
        padded[:, :inputs] = self.codes_OI
        padded[:, :inputs] -= np.float32(OFFSETS[self.bits])
        grouped = padded.reshape(outputs, groups, GROUP)
        with np.errstate(all="ignore"):  # a damaged file has any scale
            grouped *= self.scales_OG.astype(np.float32)[:, :, None]
        return padded[:, :inputs]

    def squares(self) -> float:
        """The sum of the squares of the weights."""
        steps = range(0, len(self.codes_OI), 64)  # so that their weights stay in the cache
        parts = (self[first : first + 64].values().reshape(-1) for first in steps)
        return float(sum(np.dot(part, part) for part in parts))


def panels_of(codes: Codes, shape: PanelShape) -> Array:
    """The bytes of the unit that holds `codes`, as kernels/panels.py orders them: uint8 [shape.nbytes]."""
    if codes.codes_OI.shape != (shape.outputs, shape.inputs) or codes.bits != shape.bits:
        raise ValueError(f"codes of {codes.codes_OI.shape} and {codes.bits} bits are not a unit of {shape}")
    scales = np.zeros((shape.panels * PANEL, shape.groups), np.dtype("<f2"))
    scales[: shape.outputs] = codes.scales_OG
    padded = np.zeros((shape.panels * PANEL, shape.padded_inputs), np.uint8)
    padded[: shape.outputs, : shape.inputs] = codes.codes_OI
    wide = {8: 4, 4: 8}[shape.bits]  # inputs of a block
    blocks: Array = padded.reshape(shape.panels, PANEL, shape.padded_inputs // wide, wide).swapaxes(1, 2)
    if shape.bits == 4:
        blocks = blocks[..., :4] | (blocks[..., 4:] << 4)
    blocks = np.ascontiguousarray(blocks).reshape(shape.panels, -1)
    unit = np.empty((shape.panels, shape.panel_nbytes), np.uint8)
    join_panels(scales.reshape(shape.panels, PANEL, shape.groups).swapaxes(1, 2), blocks, shape, unit)
    return unit.reshape(-1)
