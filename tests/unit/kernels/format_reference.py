"""Products in every format of panels.py, slowly, from the words of native/panels.h alone."""

from dataclasses import dataclass

import numpy as np
import torch

from tests.unit.kernels.panel_reference import F32, I64, added, fused, quantise_activations
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import GROUP, Codes, PanelFormat, PanelShape, Scales


def random_codes(random: np.random.Generator, form: PanelFormat, outputs: int, inputs: int) -> Codes:
    """Any codes, also where scales are zero, negative or denormal. A block has one d."""
    scales = np.zeros((outputs, -(-inputs // GROUP)), form.scales.dtype)
    for name in scales.dtype.names or ():
        field = scales[name]
        if field.dtype == np.float16:
            found = (random.standard_normal(field.shape) / 100).astype(np.float16)
            found[random.random(field.shape) < 0.05] = 0
            found[random.random(field.shape) < 0.05] = np.float16(6e-8)
            if name.startswith("d"):
                found = found[:, np.arange(field.shape[1]) // 8 * 8]
            scales[name] = found
        elif form.scales is Scales.HALVES:
            scales[name] = random.integers(-128, 128, field.shape)
        else:
            most = {Scales.TWO_LEVELS: 64, Scales.WITH_ZERO: 17, Scales.POWERS: 160}[form.scales]
            scales[name] = random.integers(0, most, field.shape)
    return Codes(form, random.integers(0, 1 << form.bits, (outputs, inputs), np.uint8), scales)


@dataclass(frozen=True)
class Made:
    """A matrix, and the codes of each of its units, [outputs, inputs]."""

    matrix: PanelMatrix
    units: list[Codes]

    def products(self, x_TI: F32) -> F32:
        return np.stack([np.concatenate([_fold(row, unit) for unit in self.units]) for row in x_TI])

    def sums(self, x_TI: F32, exponent: int) -> I64:
        step = self.matrix.rows_per_unit
        found = np.zeros((len(x_TI), self.matrix.cols), np.int64)
        for t, row in enumerate(x_TI):
            parts = [_fold(row[at * step :][:step], unit, exponent) for at, unit in enumerate(self.units)]
            found[t] = [added(part[o] for part in parts) for o in range(self.matrix.cols)]
        return found


def random_made(
    random: np.random.Generator, form: PanelFormat, rows: int, cols: int, rows_per_unit: int, transposed: bool
) -> Made:
    units = []
    for start in range(0, rows, rows_per_unit):
        count = min(rows_per_unit, rows - start)
        units.append(random_codes(random, form, *((cols, count) if transposed else (count, cols))))
    blobs = [unit.panels(PanelShape(form, *unit.codes_OI.shape)) for unit in units]
    room = blobs[0].nbytes + 64  # units may lie apart
    data = np.full(room * (len(blobs) - 1) + blobs[-1].nbytes, 0xFF, np.uint8)
    for at, blob in enumerate(blobs):
        data[at * room :][: blob.nbytes] = blob
    return Made(PanelMatrix(torch.from_numpy(data), form, rows, cols, rows_per_unit, room, transposed), units)


def _fold(x_I: F32, unit: Codes, exponent: int = 0) -> F32:
    q, dx = quantise_activations(x_I)
    integers = unit.format.values.astype(np.int64)[unit.codes_OI]
    scales, minimums = unit.factors()
    width = GROUP // scales.shape[2]
    y_O = np.zeros(len(integers), np.float32)
    with np.errstate(all="ignore"):
        dx = dx * np.float32(2.0**-exponent)
        for group in range(len(dx)):
            for half in range(scales.shape[2]):
                some = slice(GROUP * group + width * half, GROUP * group + width * (half + 1))
                exact = (integers[:, some] @ q[some]).astype(np.float32)
                y_O = fused(exact, scales[:, group, half] * dx[group], y_O)
            if minimums is not None:
                total = np.float32(q[GROUP * group : GROUP * (group + 1)].sum()) * dx[group]
                y_O = fused(minimums[:, group], np.broadcast_to(total, y_O.shape), y_O)
    return y_O
