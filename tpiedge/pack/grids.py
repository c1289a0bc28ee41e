"""Computes the rounding grids of a pack's row-parallel matrices from the pack alone. `kernels/grid.py` rounds parts of
these matrices' outputs to multiples of a grid's step before it adds them.

A step is 2**-16 of an output's standard deviation for inputs of magnitude 1, rounded up to a power of two. The experts
of a layer share a grid; a token's experts count as if they had equal weights.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tpiedge.errors import ProtocolError, UserError
from tpiedge.kernels.panels import Codes
from tpiedge.pack.files import OpenFile
from tpiedge.pack.layout import MatrixLayout, PanelLayout, StoredPart
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import Precision
from tpiedge.units import counted

Exponents = tuple[tuple[int, ...], ...]
"""The exponents of each layer's row-parallel matrices, in their order; empty for a pack that is not quantised."""

_BELOW: Final = 16
_UNITS: Final = 8  # of a sample
#: log2 of a weight's expected size in units of its scale; the largest weight of a group is 8 scales in q4, 127 in q8.
#: Of other precisions, weights are the sample.
_SCALES: Final = {Precision.Q4: 2, Precision.Q8: 6}
_LEAST, _MOST = -100, 100  # 2**exponent and its reciprocal are normal numbers, with room


def grid_exponents(pack: Pack) -> Exponents:
    """Computes the exponents of the grids' steps from some kilobytes of each layer. Raises UserError."""
    if not pack.precision.quantised:
        return ()
    of_blob: dict[str, tuple[int, ...]] = {}
    for layer in pack.unique_layers:
        with OpenFile(pack.blob_path(layer)) as file:
            found = (_of_part(file, part) for part in pack.layout(layer).row_parallel)
            of_blob[pack.blob_id(layer)] = tuple(found)
    return tuple(of_blob[pack.blob_id(layer)] for layer in range(pack.num_layers))


def check_exponents(exponents: Exponents, pack: Pack | None) -> None:
    """Raises ProtocolError for exponents that cannot be those of `pack`. None: no exponents are needed."""
    layouts = [] if pack is None else [pack.layout(layer) for layer in range(pack.num_layers)]
    has, needs = [len(layer) for layer in exponents], [len(one.row_parallel) for one in layouts]
    if has != needs:
        told = f"the plan has {sum(has)} grids in {counted(len(has), 'layer')}"
        raise ProtocolError(f"{told}, this node needs {sum(needs)} in {len(needs)}")
    if any(not _LEAST <= exponent <= _MOST for layer in exponents for exponent in layer):
        raise ProtocolError(f"the plan has a grid beyond 2**{_LEAST} to 2**{_MOST}")


def _of_part(file: OpenFile, part: StoredPart) -> int:
    if isinstance(part, MatrixLayout):
        return _of_matrices(file, [part], part.rows)
    some = (part.of_expert(expert) for expert in _spread(part.count, _UNITS))
    down = [matrix for matrices in some for matrix in matrices if matrix.transposed]
    return _of_matrices(file, down, down[0].rows / part.chosen)


def _of_matrices(file: OpenFile, matrices: Sequence[MatrixLayout], inputs: float) -> int:
    """Takes a sample of at most _UNITS units of matrices with so many inputs."""
    squares: list[float] = []
    for matrix in matrices:
        if not isinstance(matrix, PanelLayout):
            raise UserError(f"{file.path}: {matrix.name} is not quantised as its layer is: pack again")
        squares += _squares(file, matrix, _UNITS // len(matrices))
    # fsum rounds once, so every computer gets the same sum.
    mean = math.fsum(squares) / max(1, len(squares))
    if mean == 0:
        return -_BELOW  # panels outside the sample need not be zeros
    variance = mean * 4.0 ** _SCALES.get(matrices[0].precision, 0) * inputs
    _, exponent = math.frexp(variance)  # 2**(exponent - 1) <= variance < 2**exponent
    return max(_LEAST, min(_MOST, math.ceil(exponent / 2) - _BELOW))


def _squares(file: OpenFile, matrix: PanelLayout, units: int) -> Iterator[float]:
    for unit in _spread(matrix.units, units):
        shape = matrix.shape(unit)
        offset, _ = matrix.span(unit, unit + 1)
        for panel in _spread(shape.panels, 4):
            place = offset + panel * shape.panel_nbytes
            stored = file.array(place, (1, shape.panel_nbytes), np.dtype(np.uint8))
            codes = Codes.of_panels(stored, shape)
            sample = codes.factors()[0] if matrix.precision in _SCALES else codes.values()
            yield from (sample[np.isfinite(sample)].astype(np.float64) ** 2).tolist()


def _spread(count: int, most: int) -> Iterator[int]:
    some = min(count, most)
    return (at * count // some for at in range(some))
