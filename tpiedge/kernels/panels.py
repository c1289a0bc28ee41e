"""Layout of quantised matrices in memory and on disk: panels of 16 outputs, in the order in which kernels read.

Every unit is stored on its own. A column-parallel matrix has units of outputs. A row-parallel matrix has units of
inputs. docs/kernels.md describes every bit.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

PANEL = 16  # outputs of a panel
GROUP = 32  # inputs that share a scale
OFFSETS = {8: 128, 4: 8}  # the code of a zero weight, by bits

_STEP = 8
_LINE_BYTES = 64
_PAIR = 2  # groups


@dataclass(frozen=True)
class PanelShape:
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
        return -(-self.inputs // _STEP) * _STEP

    @cached_property
    def codes_nbytes(self) -> int:
        return self.padded_inputs * PANEL * self.bits // 8

    @cached_property
    def panel_nbytes(self) -> int:
        return -(-self.groups // _PAIR) * _LINE_BYTES + self.codes_nbytes

    @cached_property
    def nbytes(self) -> int:
        return self.panels * self.panel_nbytes


def split_panels(panels_PB: Array, shape: PanelShape) -> tuple[Array, Array]:
    """Returns copies of the panels' scales, f16 [panels, groups, 16], and codes, [panels, codes_nbytes]."""
    whole_PNB, rest_PB = _pairs(panels_PB, shape)
    panels = len(panels_PB)
    scales_PB = np.hstack([whole_PNB[..., :_LINE_BYTES].reshape(panels, -1), rest_PB[:, :_LINE_BYTES]])
    codes_PB = np.hstack([whole_PNB[..., _LINE_BYTES:].reshape(panels, -1), rest_PB[:, _LINE_BYTES:]])
    return scales_PB.view("<f2").reshape(panels, -1, PANEL)[:, : shape.groups], codes_PB


def split_output(panel_B: Array, shape: PanelShape, output: int) -> tuple[Array, Array]:
    """Returns copies of one output's scales, f16 [1, groups, 1], and codes, [1, bytes]."""
    whole_1NB, rest_1B = _pairs(panel_B[None], shape)
    line = slice(output, _PAIR * PANEL, PANEL)
    scales_G = np.hstack([whole_1NB.view("<f2")[0, :, line].reshape(-1), rest_1B.view("<f2")[0, line]])
    # A line has a word of four bytes for each output; the first line has the scales.
    lines = slice(PANEL + output, None, PANEL)
    codes = np.hstack([whole_1NB.view("<u4")[0, :, lines].reshape(-1), rest_1B.view("<u4")[0, lines]])
    return scales_G[None, : shape.groups, None], codes.view(np.uint8)[None]


def join_panels(scales_PGr: Array, codes_PB: Array, shape: PanelShape, panels_PB: Array) -> None:
    """Fills `panels_PB` from the scales and codes that `split_panels` returns."""
    whole_PNB, rest_PB = _pairs(panels_PB, shape)
    panels, pairs = whole_PNB.shape[:2]
    scales_PGB = np.ascontiguousarray(scales_PGr, "<f2").view(np.uint8)
    whole_PNB[..., :_LINE_BYTES] = scales_PGB[:, : pairs * _PAIR].reshape(panels, pairs, _LINE_BYTES)
    codes_nbytes = whole_PNB.shape[2] - _LINE_BYTES
    split = pairs * codes_nbytes
    whole_PNB[..., _LINE_BYTES:] = codes_PB[:, :split].reshape(panels, pairs, codes_nbytes)
    last_PB = scales_PGB[:, pairs * _PAIR :].reshape(panels, -1)
    rest_PB[:, : last_PB.shape[1]] = last_PB
    rest_PB[:, last_PB.shape[1] : _LINE_BYTES] = 0
    rest_PB[:, _LINE_BYTES:] = codes_PB[:, split:]


def _pairs(panels_PB: Array, shape: PanelShape) -> tuple[Array, Array]:
    """Returns views of all pairs of groups, [panels, pairs, bytes], and of the bytes after them."""
    pairs = shape.inputs // (_PAIR * GROUP)
    nbytes = _LINE_BYTES + _PAIR * GROUP * PANEL * shape.bits // 8
    whole_PNB = panels_PB[:, : pairs * nbytes].reshape(len(panels_PB), pairs, nbytes)
    return whole_PNB, panels_PB[:, pairs * nbytes :]
