"""Computes a node's part of an FFN block. T tokens, H hidden size, F FFN columns of the share, O output features.

Many tokens are computed in mini-sequences (MOM, section 3.1). In a mini-sequence, gate and up (T x F floats each)
together take at most SCRATCH_BYTES. Normed rows (T x H floats) take at most NORMED_BYTES. Native products need up to 8
MiB more for quantised weights, and 32 bytes per token and output for other weights.
"""

import struct
from collections.abc import Iterator

import torch
from torch import Tensor

from tpiedge.kernels.elementwise import Activation, activate, rms_norm
from tpiedge.kernels.grid import Grid, sums_of
from tpiedge.kernels.library import (
    F32_BYTES,
    NO_MATRIX,
    NO_PANELS,
    Pool,
    address,
    check_f32,
    pack_inputs,
    pack_matrix,
    pack_panels,
    pack_row_parallel,
)
from tpiedge.kernels.linear import Arithmetic, Linear, check_activations, check_weight
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight

#: For gate and up. With 4096 x 11008 matrices a message of 1 MiB is still one piece; two halves take a fifth longer.
SCRATCH_BYTES = 8 << 20
NORMED_BYTES = 2 << 20  # for the rows after the norm

_ROWS = 16  # rows of a tile of torch's and the native kernels

# As the end of PanelFFN of native/interface.h: norm, eps, activation.
_REST = struct.Struct("=qdq")

Biases = tuple[Tensor | None, Tensor | None]  # biases of gate and up, [F] each
Matrices = tuple[Weight | None, Weight | None, Weight]  # gate, up and down


def ffn(
    x_TH: Tensor,
    norm_H: Tensor | None,
    eps: float,
    gate_FH: Weight | None,
    up_FH: Weight | None,
    down_FO: Weight,
    linear: Linear,
    biases: Biases = (None, None),
    activation: Activation = Activation.SILU,
    inputs_TF: Tensor | None = None,
) -> Tensor:
    """Returns f32 [T, O]. INT8 is for f32 and bf16 matrices only. Without `gate_FH`, the activation is of up. Without
    `up_FH`, `inputs_TF` take the place of its products."""
    matrices = gate_FH, up_FH, down_FO
    hidden = check_ffn(norm_H, matrices)
    check_activations(x_TH, hidden)
    check_inputs(inputs_TF, len(x_TH), down_FO.shape[0] if up_FH is None else 0)
    if biases == (None, None):
        found_TO = _few(x_TH, (norm_H, eps), (*matrices, inputs_TF), linear, activation)
        if found_TO is not None:
            return found_TO
    inner = [(w, bias_F) for w, bias_F in zip((gate_FH, up_FH), biases, strict=True) if w is not None]

    def computed(rows: slice) -> Tensor:
        x_RH = x_TH[rows]
        h_RH = x_RH if norm_H is None else rms_norm(x_RH, norm_H, eps, linear.pool)
        parts = linear.project_many(h_RH, [w for w, _ in inner])
        for y_RF, (_, bias_F) in zip(parts, inner, strict=True):
            if bias_F is not None:
                y_RF += bias_F
        if inputs_TF is not None:
            parts.append(inputs_TF[rows].contiguous())
        inner_RF = activate(parts[0], parts[1] if gate_FH is not None else None, activation, linear.pool)
        del parts, y_RF
        return linear.contract(inner_RF, down_FO)

    tokens = len(x_TH)
    pieces = list(mini_sequences(tokens, hidden, down_FO.shape[0], linear.arithmetic))
    if len(pieces) <= 1:
        return computed(slice(tokens))
    # Allocated first: amid the large temporaries it would keep their memory from returning to the system.
    y_TO = torch.empty((tokens, down_FO.shape[1]))
    for rows in pieces:
        y_TO[rows] = computed(rows)
    return y_TO


def _few(
    x_TH: Tensor,
    norm: tuple[Tensor | None, float],
    operands: tuple[Weight | None, Weight | None, Weight, Tensor | None],
    linear: Linear,
    activation: Activation,
) -> Tensor | None:
    pool, (norm_H, eps), (gate_FH, up_FH, down_FO, inputs_TF) = linear.pool_of(len(x_TH)), norm, operands
    if (
        pool is None
        or isinstance(gate_FH, PanelMatrix)
        or isinstance(up_FH, PanelMatrix)
        or isinstance(down_FO, PanelMatrix)
    ):
        return None
    x_TH = x_TH.contiguous()
    (tokens, hidden), (rows, cols) = x_TH.shape, down_FO.shape
    y_TO = torch.empty((tokens, cols))
    scratch = torch.empty(tokens * (hidden + 2 * rows))
    gate = scratch.data_ptr() + F32_BYTES * tokens * hidden
    up = NO_MATRIX if inputs_TF is None else pack_inputs(inputs_TF)
    packed = (
        (NO_MATRIX if gate_FH is None else pack_matrix(gate_FH, gate, rows))
        + (up if up_FH is None else pack_matrix(up_FH, gate + F32_BYTES * tokens * rows, rows))
        + pack_matrix(down_FO, y_TO.data_ptr(), rows)
    )
    rounds = linear.arithmetic is Arithmetic.BF16
    of_x = x_TH.data_ptr(), tokens, hidden, address(norm_H)
    pool.call("tpiedge_ffn", *of_x, eps, rounds, packed, activation.number, cols, scratch.data_ptr())
    return y_TO


def mini_sequences(tokens: int, hidden: int, columns: int, arithmetic: Arithmetic) -> Iterator[slice]:
    """Yields the rows of each mini-sequence. All but the last have a multiple of 16 rows."""
    row_bytes = max(1, columns) * (10 if arithmetic is Arithmetic.BF16 else 8)
    rows = min(SCRATCH_BYTES // row_bytes, NORMED_BYTES // (4 * max(1, hidden)))
    step = max(_ROWS, rows // _ROWS * _ROWS)
    return (slice(first, min(first + step, tokens)) for first in range(0, tokens, step))


class FusedFFN:
    """An FFN block of quantised matrices: gate or None, up or None, and down. Their memory must not move. Without up,
    each call's inputs take the place of its products. Raises ValueError."""

    def __init__(
        self,
        norm_H: Tensor | None,
        eps: float,
        matrices: tuple[PanelMatrix | None, PanelMatrix | None, PanelMatrix],
        pool: Pool,
        grid: Grid,
        biases: Biases = (None, None),
        activation: Activation = Activation.SILU,
    ) -> None:
        *inner, down = matrices
        self.hidden, self.outputs = check_ffn(norm_H, matrices), down.cols
        for w, bias_F in zip(inner, biases, strict=True):
            if bias_F is not None:
                check_f32("a bias", bias_F, (0 if w is None else w.rows,))
        self.packed = (
            b"".join(
                NO_PANELS if w is None else pack_panels(w, bias_R=bias_F)
                for w, bias_F in zip(inner, biases, strict=True)
            )
            + pack_row_parallel(down, grid.exponent, grid.most)
            + _REST.pack(address(norm_H), eps, activation.number)
        )
        self._pool = pool
        self._kept = matrices, biases, norm_H  # their addresses are packed
        self._inner = down.rows
        #: Columns of a call's inputs.
        self.inputs = down.rows if inner[1] is None else 0
        self.scratch = self.hidden + (2 - inner.count(None)) * down.rows

    def run(self, x_TH: Tensor, inputs_TF: Tensor | None = None) -> Tensor:
        """Returns integers [T, O], in units of 2**grid.exponent."""
        check_activations(x_TH, self.hidden)
        inputs, stride = check_inputs(inputs_TF, len(x_TH), self.inputs)
        x_TH = x_TH.contiguous()
        pieces = list(mini_sequences(len(x_TH), self.hidden, self._inner, Arithmetic.INT8))
        scratch = torch.empty(pieces[0].stop * self.scratch if pieces else 0)

        def compute(sums_TO: Tensor, wide: bool) -> bool:
            return all(
                self._pool.call(
                    "tpiedge_panels_ffn",
                    self.packed,
                    x_TH.data_ptr() + F32_BYTES * self.hidden * rows.start,
                    inputs + F32_BYTES * stride * rows.start,
                    stride,
                    sums_TO.data_ptr() + sums_TO.itemsize * self.outputs * rows.start,
                    rows.stop - rows.start,
                    scratch.data_ptr(),
                    wide,
                )
                for rows in pieces
            )

        return sums_of((len(x_TH), self.outputs), compute)


def check_inputs(inputs_TC: Tensor | None, tokens: int, columns: int) -> tuple[int, int]:
    """Returns the address of given inputs, and the floats from one row to the next. Raises ValueError unless they have
    so many columns; None has none."""
    if inputs_TC is None and columns == 0:
        return 0, 0
    if inputs_TC is None or columns == 0:
        raise ValueError(f"inputs of {columns} columns are {'missing' if columns else 'not used'}")
    check_f32("inputs", inputs_TC, (tokens, columns), contiguous=False)
    if inputs_TC.stride(1) != 1:
        raise ValueError(f"inputs have strides {inputs_TC.stride()}")
    return inputs_TC.data_ptr(), inputs_TC.stride(0)


def check_ffn(norm_H: Tensor | None, matrices: Matrices) -> int:
    """Returns the hidden size."""
    inner, down_FO = [w for w in matrices[:2] if w is not None], matrices[2]
    for w in inner:
        check_weight(w, input_dim=1)
    check_weight(down_FO, input_dim=0)
    kinds = {tuple(w.shape) for w in inner}
    if len(kinds) != 1 or {rows for rows, _ in kinds} != {down_FO.shape[0]}:
        shapes = [None if w is None else list(w.shape) for w in matrices]
        raise ValueError(f"gate, up and down are {shapes}")
    ((_, hidden),) = kinds
    if norm_H is not None:
        check_f32("the norm's weight", norm_H, (hidden,))
    return hidden
