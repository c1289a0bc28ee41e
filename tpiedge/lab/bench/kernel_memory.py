"""What the operands of `tpiedge bench kernels` take, by arithmetic alone: refused before the first of them is made.

H hidden size, F columns of the FFN, T tokens, K KV heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tpiedge.errors import OutOfMemory
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.panels import PanelShape
from tpiedge.pack.layout import whole_pages
from tpiedge.units import MIB, format_bytes
from tpiedge.wire.fields import KVPrecision

UNIT = 128
"""Rows of a quantised matrix that are one unit, as an FFN's."""
GROUP = 4
"""Query heads of a KV head."""
POSITIONS = 2048
PAGE_POSITIONS = 64
"""Of a page of the KV cache."""
BITS = {"q8": 8, "q4": 4}

_HEAD_DIM = 128
_MOST_COPIES = 32
_NUMBER_BYTES = {"f32": 4, "bf16": 2}
#: By kernel, whether each of its matrices is transposed.
_TRANSPOSED = {"project": (False,), "contract": (True,), "ffn": (False, False, True)}
#: What the kernels and torch in their place take beside operands and results: widened tiles, masks, gate and up, keys
#: and values out of their pages.
_SCRATCH_BYTES = 64 * MIB

OperandShape = tuple[int, int]
"""H and F."""


@dataclass(frozen=True)
class Rotation:
    """So many bytes of operands at least, so that none is found in a cache where it was left."""

    nbytes: int

    def copies(self, nbytes: int) -> int:
        """How many copies of operands of `nbytes` bytes to use in turn."""
        return min(_MOST_COPIES, max(2, -(-self.nbytes // max(1, nbytes))))


def heads_of(hidden: int) -> tuple[int, int, int]:
    """(query heads, KV heads, their width) of a model of that hidden size."""
    heads = max(1, hidden // _HEAD_DIM)
    return heads, -(-heads // GROUP), min(_HEAD_DIM, hidden)


def matrix_nbytes(precision: KVPrecision, rows: int, cols: int, *, transposed: bool) -> int:
    """Bytes of a matrix as the kernels are given it."""
    if precision not in BITS:
        return rows * cols * _NUMBER_BYTES[precision]
    shape = PanelShape(BITS[precision], *((cols, UNIT) if transposed else (UNIT, cols)))
    return -(-rows // UNIT) * whole_pages(shape.nbytes)


def cache_nbytes(hidden: int, precision: KVPrecision) -> int:
    """Bytes of all keys and values that a token looks at."""
    _, kv_heads, width = heads_of(hidden)
    return 2 * kv_heads * POSITIONS * KVFormat(precision, width).row_nbytes


def _pages_nbytes(hidden: int, precision: KVPrecision) -> int:
    """Bytes of the pages that these keys and values lie in."""
    _, kv_heads, width = heads_of(hidden)
    part_nbytes = whole_pages(2 * PAGE_POSITIONS * KVFormat(precision, width).row_nbytes)
    return POSITIONS // PAGE_POSITIONS * kv_heads * part_nbytes


def largest(
    kernels: Sequence[str],
    shapes: Sequence[OperandShape],
    precisions: Sequence[KVPrecision],
    tokens: Sequence[int],
    rotation: Rotation,
) -> tuple[int, str]:
    """(bytes, name) of the cases that take the most at once: those of one kernel, shape and precision."""
    return max(
        (
            _operands(kernel, shape, precision, rotation) + _activations(kernel, shape, tokens),
            f"{kernel} {shape[0]}x{shape[1]} in {precision}",
        )
        for kernel in kernels
        for shape in shapes
        for precision in precisions
    )


def check_room(needed: tuple[int, str], rotation: Rotation, available_bytes: int) -> None:
    """`needed`: of `largest`. Raises OutOfMemory where it does not fit beside the probes' buffer."""
    nbytes, name = needed
    whole = nbytes + rotation.nbytes + _SCRATCH_BYTES
    if whole > available_bytes:
        raise OutOfMemory(
            f"{name} takes {format_bytes(whole)} with the copies that keep it out of the caches, "
            f"and {format_bytes(available_bytes)} are free: give smaller --shapes or --tokens, fewer --kernels or "
            "--precisions, or close other programs"
        )


def _operands(kernel: str, shape: OperandShape, precision: KVPrecision, rotation: Rotation) -> int:
    """Bytes of what is there in copies."""
    hidden, columns = shape
    if kernel == "attention":
        copies = rotation.copies(cache_nbytes(hidden, precision))
        return copies * _pages_nbytes(hidden, precision)
    sizes = [
        matrix_nbytes(precision, columns, hidden, transposed=transposed)
        for transposed in _TRANSPOSED.get(kernel, ())
    ]
    return sum(rotation.copies(nbytes) * nbytes for nbytes in sizes)


def _activations(kernel: str, shape: OperandShape, tokens: Sequence[int]) -> int:
    """Bytes of the inputs of every number of tokens, which are there together, and of one result and torch's."""
    hidden, columns = shape
    if kernel in ("attention", "rope"):
        heads, _, width = heads_of(hidden)
        hidden = heads * width
    if kernel == "attention":  # more tokens than positions are not measured
        tokens = [count for count in tokens if count <= POSITIONS]
    inputs = {"contract": columns, "swiglu": 2 * columns}.get(kernel, hidden)
    results = columns if kernel in ("project", "swiglu") else hidden
    return 4 * (inputs * sum(tokens) + 2 * results * max(tokens, default=0))
