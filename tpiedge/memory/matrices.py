"""Units of a matrix where they lie in an arena, as the kernels take them. No copy is made."""

from tpiedge.errors import InternalError
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight
from tpiedge.memory.arena import DTYPES, Arena, Extent
from tpiedge.pack.layout import MatrixLayout, PanelLayout, RowLayout
from tpiedge.pack.share import Share

__all__ = ["matrix_in"]


def matrix_in(arena: Arena, extent: Extent, layout: MatrixLayout, units: Share) -> Weight:
    """The `units` (not none) that fill `extent`: [rows, cols] in the storage dtype with rows of padding, or panels."""
    match layout:
        case RowLayout():
            rows = layout.row_count(units.start, units.stop)
            return arena.matrix(extent, rows, layout.cols, layout.row_stride, DTYPES[layout.precision])
        case PanelLayout():
            return PanelMatrix(
                arena.bytes(extent),
                layout.precision.bits,
                min(units.stop * layout.rows_per_unit, layout.rows) - units.start * layout.rows_per_unit,
                layout.cols,
                layout.rows_per_unit,
                layout.unit_nbytes(0),
                layout.transposed,
            )
    raise InternalError(f"no matrix is made of a {type(layout).__name__}")
