"""Quantised experts as a node has them in memory: expert, unit, then the unit of gate, of up and of down."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tests.unit.kernels.format_reference import Made, random_codes
from tests.unit.kernels.panel_reference import I64
from tpiedge.kernels.elementwise import Activation, activate
from tpiedge.kernels.experts import ExpertBiases, Routed
from tpiedge.kernels.grid import NOT_A_NUMBER
from tpiedge.kernels.library import Pool
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import FORMATS, GROUP, Codes, PanelFormat, PanelShape, Scales

UNIT = 64
FILL = 128  # bytes to a multiple of which an expert's unit is filled up

Matrices = tuple[PanelMatrix, PanelMatrix, PanelMatrix]
#: Makes the codes of so many outputs and inputs.
MakeCodes = Callable[[PanelFormat, int, int], Codes]


@dataclass(frozen=True)
class Mixture:
    """Gate, up and down of each expert."""

    experts: list[tuple[Made, Made, Made]]
    expert_nbytes: int

    def matrices(self, expert: int) -> Matrices:
        gate, up, down = self.experts[expert]
        return gate.matrix, up.matrix, down.matrix

    def sums(
        self,
        h_TH: Tensor,
        routes: Routed,
        exponent: int,
        pool: Pool,
        activation: Activation = Activation.SILU,
        biases: ExpertBiases | None = None,
    ) -> I64:
        """Computes token by token; products and sums are those of the definition."""
        found = np.zeros(h_TH.shape, np.int64)
        for row, total, ids, weights in zip(h_TH.numpy(), found, *routes, strict=True):
            for number, weight in zip(ids.tolist(), weights, strict=True):
                gate, up, down = self.experts[number]
                gate_1F, up_1F = (torch.from_numpy(made.products(row[None])) for made in (gate, up))
                if biases is not None:
                    gate_1F, up_1F = gate_1F + biases.gate_EF[number], up_1F + biases.up_EF[number]
                inner = activate(gate_1F, up_1F, activation, pool)
                parts = [down.sums((inner * weight).numpy(), exponent)[0]]
                if biases is not None and biases.down_EO is not None:
                    parts.append(_rounded(weight * biases.down_EO[number], exponent))
                for part in parts:
                    lost = (total == NOT_A_NUMBER) | (part == NOT_A_NUMBER)
                    total[:] = np.where(lost, NOT_A_NUMBER, total + part)
        return found


def _rounded(x_O: Tensor, exponent: int) -> I64:
    steps = np.rint(np.ldexp(x_O.double().numpy(), -exponent))
    within = np.abs(steps) <= 2.0**46
    return np.where(within, np.where(within, steps, 0).astype(np.int64), NOT_A_NUMBER)


def random_mixture(
    random: np.random.Generator, count: int, hidden: int, columns: int, formats: Sequence[str]
) -> Mixture:
    def codes_of(form: PanelFormat, outputs: int, inputs: int) -> Codes:
        codes = random_codes(random, form, outputs, inputs)
        if form.scales is Scales.POWERS:  # of moderate size
            codes.scales_OG["e"] = codes.scales_OG["e"] % 8 + 118
        return codes

    return mixture_of(codes_of, count, hidden, columns, formats)


def largest_codes(form: PanelFormat, outputs: int, inputs: int) -> Codes:
    """Makes the largest number of every code, and the scale 2**-4."""
    scales = np.full((outputs, -(-inputs // GROUP)), (124,), form.scales.dtype)
    return Codes(form, np.full((outputs, inputs), form.values.argmax(), np.uint8), scales)


def mixture_of(codes_of: MakeCodes, count: int, hidden: int, columns: int, formats: Sequence[str]) -> Mixture:
    widths = [min(UNIT, columns - first) for first in range(0, columns, UNIT)]
    shapes = [
        [PanelShape(FORMATS[name], *((hidden, width) if at == 2 else (width, hidden))) for width in widths]
        for at, name in enumerate(formats)
    ]
    places = np.cumsum([0] + [of_matrix[0].nbytes for of_matrix in shapes])
    unit_nbytes = -(-int(places[-1]) // FILL) * FILL
    expert_nbytes = unit_nbytes * len(widths)
    # Nothing lies behind the last unit, which may be shorter.
    nbytes = count * expert_nbytes - unit_nbytes + int(places[2]) + shapes[2][-1].nbytes
    data_B = torch.full((nbytes,), 0xFF, dtype=torch.uint8)

    def made(expert: int, at: int) -> Made:
        form, of_expert = FORMATS[formats[at]], data_B[expert * expert_nbytes + int(places[at]) :]
        units = [codes_of(form, shape.outputs, shape.inputs) for shape in shapes[at]]
        for unit, (codes, shape) in enumerate(zip(units, shapes[at], strict=True)):
            of_expert.numpy()[unit * unit_nbytes :][: shape.nbytes] = codes.panels(shape)
        return Made(PanelMatrix(of_expert, form, columns, hidden, UNIT, unit_nbytes, at == 2), units)

    return Mixture([(made(e, 0), made(e, 1), made(e, 2)) for e in range(count)], expert_nbytes)
