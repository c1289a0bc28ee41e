"""Quantised matrices of a blob back as numbers: exactly those that products are computed with."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tpiedge.kernels.panels import PANEL, PanelShape
from tpiedge.kernels.quantise import dequantise_unit
from tpiedge.pack.dtypes import Array
from tpiedge.pack.files import read_exactly
from tpiedge.pack.layout import PanelLayout

__all__ = ["dequantised_rows"]

_PART_BYTES = 4 << 20  # about five arrays of a part live at a time


def dequantised_rows(matrix: PanelLayout, fd: int, path: Path) -> Iterator[Array]:
    """The matrix in f32 as the checkpoint had it, a row per output, some rows at a time. Raises ReadFault."""
    row_bytes = 4 * (matrix.rows if matrix.transposed else matrix.cols)
    panels = max(1, _PART_BYTES // (PANEL * row_bytes))
    if matrix.transposed:
        for first in range(0, matrix.shape(0).panels, panels):
            units = [_panels(matrix, unit, first, panels, fd, path) for unit in range(matrix.units)]
            yield np.concatenate(units, axis=1)
        return
    for unit in range(matrix.units):
        for first in range(0, matrix.shape(unit).panels, panels):
            yield _panels(matrix, unit, first, panels, fd, path)


def _panels(matrix: PanelLayout, unit: int, first: int, count: int, fd: int, path: Path) -> Array:
    """[outputs, inputs] of up to `count` panels of a unit."""
    whole = matrix.shape(unit)
    outputs = min(count * PANEL, whole.outputs - first * PANEL)
    shape = PanelShape(whole.bits, outputs, whole.inputs)
    data = np.empty(shape.nbytes, np.uint8)
    read_exactly(fd, path, matrix.span(unit, unit + 1)[0] + first * whole.panel_nbytes, data.data)
    return dequantise_unit(data, shape)
