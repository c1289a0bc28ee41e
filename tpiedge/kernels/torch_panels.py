"""Products with quantised matrices through torch, in bounded scratch memory.

T tokens, I input features, O output features, P panels, G groups.
Activations are quantised as the native kernels do it (native/panels.h); then both factors are widened, and the product
is torch's. So results equal those of the native kernels to rounding in f32 only: they differ by at most
(inputs + 8) * 2^-23 times the sum of the products' magnitudes.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tpiedge.kernels.grid import Grid, add_steps, narrowed, steps_of
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import GROUP, PANEL, PanelShape
from tpiedge.kernels.quantise import dequantise_unit

__all__ = ["contract", "project", "round_activations"]

_SCRATCH_ELEMENTS = 1 << 20
_STEPS = 127


def project(x_TI: Tensor, w: PanelMatrix) -> Tensor:
    """x @ w.T of a column-parallel matrix: [T, O] f32."""
    y_TO = x_TI.new_empty((x_TI.shape[0], w.rows))
    for rows in _token_tiles(x_TI):
        rounded_TI = round_activations(x_TI[rows])
        for unit in range(w.units):
            for first, w_OI in _tiles(w, unit):
                first += unit * w.rows_per_unit
                y_TO[rows, first : first + w_OI.shape[0]] = torch.mm(rounded_TI, w_OI.t())
    return y_TO


def contract(x_TR: Tensor, w: PanelMatrix, grid: Grid) -> Tensor:
    """x @ w of a row-parallel matrix: [T, O] sums of `grid`. The groups of activations restart at every unit."""
    sums_TO = x_TR.new_zeros((x_TR.shape[0], w.cols), dtype=torch.int64)
    for rows in _token_tiles(x_TR):
        for unit in range(w.units):
            begin = unit * w.rows_per_unit
            rounded_TI = round_activations(x_TR[rows, begin : begin + w.rows_per_unit])
            for first, w_OI in _tiles(w, unit):
                add_steps(
                    sums_TO[rows, first : first + w_OI.shape[0]],
                    steps_of(torch.mm(rounded_TI, w_OI.t()), grid),
                )
    return narrowed(sums_TO, grid)


def round_activations(x_TI: Tensor) -> Tensor:
    """What remains of the activations of one unit: q * dx of each group."""
    tokens, inputs = x_TI.shape
    x_TGi = F.pad(x_TI, (0, -inputs % GROUP)).view(tokens, -1, GROUP)
    most_TG1 = x_TGi.abs().amax(-1, keepdim=True)
    # A tensor, because a number divided by a tensor is the rounded reciprocal times the number: two roundings.
    inverse_TG1 = torch.tensor(float(_STEPS)) / most_TG1
    number = most_TG1.isfinite()
    q_TGi = torch.where(number & inverse_TG1.isfinite(), x_TGi * inverse_TG1, 0).round_()
    dx_TG1 = torch.where(number, most_TG1 / _STEPS, torch.nan)
    return (q_TGi * dx_TG1).view(tokens, -1)[:, :inputs]


def _tiles(w: PanelMatrix, unit: int) -> Iterator[tuple[int, Tensor]]:
    """Some outputs of a unit at a time: the first of them within the unit, and their weights [O, I]."""
    shape = w.unit_shape(unit)
    step = max(1, _SCRATCH_ELEMENTS // (PANEL * max(1, shape.inputs)))
    begin = unit * w.unit_nbytes
    for panel in range(0, shape.panels, step):
        stop = min(panel + step, shape.panels)
        data_B = w.data_B[begin + panel * shape.panel_nbytes : begin + stop * shape.panel_nbytes]
        first = panel * PANEL
        part = PanelShape(shape.bits, min(stop * PANEL, shape.outputs) - first, shape.inputs)
        yield first, torch.from_numpy(dequantise_unit(data_B.numpy(), part))


def _token_tiles(x: Tensor) -> Iterator[slice]:
    """Tokens whose activations are widened together."""
    tokens, inputs = x.shape
    step = max(PANEL, 4 * _SCRATCH_ELEMENTS // max(1, inputs))
    return (slice(first, first + step) for first in range(0, tokens, step))
