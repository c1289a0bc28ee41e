"""How quantised matrices lie in memory and on disk: 16 outputs side by side, in the order in which the kernels read.

A matrix has O outputs and I inputs, y[o] = sum over i of w[o, i] * x[i], however the checkpoint stores it. It is cut
into units: of outputs for column-parallel matrices, of inputs for row-parallel ones. A unit is stored on its own:

1. Its outputs form panels of 16, the last filled up with outputs that are zero. Panel follows panel.
2. Its inputs form groups of 32 from the unit's first input on; the last may be short, and is filled up to a multiple
   of 8 with inputs that count as zero.
3. A panel begins with its scales: for each group one f16 of each of the 16 outputs, then zeros up to a multiple of 64
   bytes. Its codes follow, group by group.
4. q8: a group's codes are blocks of 4 inputs, 64 bytes each; byte 4 r + j of block b is the code of output r and
   input 4 b + j. The weight is scale * (code - 128).
5. q4: a group's codes are blocks of 8 inputs, 64 bytes each; byte 4 r + j of block b holds the code of output r and
   input 8 b + j in its lower four bits and that of input 8 b + 4 + j in its upper four. The weight is
   scale * (code - 8).
6. Scales of outputs that fill up are zero. Whatever else fills up is zero bytes, too: it meets inputs or scales that
   are zero.

The groups restart at every unit, so units can be computed by different nodes (design, section 6). All panels and their
codes begin at multiples of 64 bytes of the unit.
"""

from dataclasses import dataclass
from functools import cached_property

__all__ = ["GROUP", "OFFSETS", "PANEL", "PanelShape"]

PANEL = 16
"""Outputs of a panel."""
GROUP = 32
"""Inputs that share a scale."""
OFFSETS = {8: 128, 4: 8}
"""By bits: what is taken from a code."""

_STEP = 8
_LINE_BYTES = 64
_SCALE_BYTES = 2


@dataclass(frozen=True)
class PanelShape:
    """Of one unit: `outputs` x `inputs` weights of `bits` bits (4 or 8)."""

    bits: int
    outputs: int
    inputs: int

    @cached_property
    def panels(self) -> int:
        return -(-self.outputs // PANEL)

    @cached_property
    def groups(self) -> int:
        return -(-self.inputs // GROUP)

    @cached_property
    def padded_inputs(self) -> int:
        """Inputs with a code."""
        return -(-self.inputs // _STEP) * _STEP

    @cached_property
    def scales_nbytes(self) -> int:
        """Of a panel, with what fills them up: where its codes begin."""
        return -(-self.groups * PANEL * _SCALE_BYTES // _LINE_BYTES) * _LINE_BYTES

    @cached_property
    def panel_nbytes(self) -> int:
        return self.scales_nbytes + self.padded_inputs * PANEL * self.bits // 8

    @cached_property
    def nbytes(self) -> int:
        return self.panels * self.panel_nbytes
