"""Computes a node's part of an FFN block. T tokens, H hidden size, F FFN columns of the share, O output features.

Many tokens are computed in mini-sequences (MOM, section 3.1). In a mini-sequence, gate and up (T x F floats each)
together take at most SCRATCH_BYTES. Normed rows (T x H floats) take at most NORMED_BYTES. Native products need up to 8
MiB more for quantised weights, and 32 bytes per token and output for other weights.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from tpiedge.kernels.elementwise import rms_norm, swiglu
from tpiedge.kernels.grid import Grid, sums_of
from tpiedge.kernels.library import F32_BYTES, Pool, check_f32, pack_matrix, pack_panels, pack_row_parallel
from tpiedge.kernels.linear import Arithmetic, Linear, check_activations, check_weight
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight

#: For gate and up. With 4096 x 11008 matrices a message of 1 MiB is still one piece; two halves take a fifth longer.
SCRATCH_BYTES = 8 << 20
NORMED_BYTES = 2 << 20  # for the rows after the norm

_ROWS = 16  # rows of a tile of torch's and the native kernels

Biases = tuple[Tensor | None, Tensor | None]  # biases of gate and up, [F] each


def ffn(
    x_TH: Tensor,
    norm_H: Tensor,
    eps: float,
    gate_FH: Weight,
    up_FH: Weight,
    down_FO: Weight,
    linear: Linear,
    biases: Biases = (None, None),
) -> Tensor:
    """Returns f32 [T, O]. INT8 is for f32 and bf16 matrices only."""
    if biases == (None, None):
        found_TO = _few(x_TH, norm_H, eps, (gate_FH, up_FH, down_FO), linear)
        if found_TO is not None:
            return found_TO

    def computed(x_RH: Tensor) -> Tensor:
        gate_RF, up_RF = linear.project_many(rms_norm(x_RH, norm_H, eps, linear.pool), (gate_FH, up_FH))
        for y_RF, bias_F in zip((gate_RF, up_RF), biases, strict=True):
            if bias_F is not None:
                y_RF += bias_F
        inner_RF = swiglu(gate_RF, up_RF, linear.pool)
        del gate_RF, up_RF, y_RF
        return linear.contract(inner_RF, down_FO)

    tokens, hidden = x_TH.shape
    pieces = list(mini_sequences(tokens, hidden, gate_FH.shape[0], linear.arithmetic))
    if len(pieces) <= 1:
        return computed(x_TH)
    # Allocated first: amid the large temporaries it would keep their memory from returning to the system.
    y_TO = torch.empty((len(x_TH), down_FO.shape[1]))
    for rows in pieces:
        y_TO[rows] = computed(x_TH[rows])
    return y_TO


def _few(
    x_TH: Tensor, norm_H: Tensor, eps: float, matrices: tuple[Weight, Weight, Weight], linear: Linear
) -> Tensor | None:
    pool, (gate_FH, up_FH, down_FO) = linear.pool_of(len(x_TH)), matrices
    if pool is None or not (
        isinstance(gate_FH, Tensor) and isinstance(up_FH, Tensor) and isinstance(down_FO, Tensor)
    ):
        return None
    _check_weights(norm_H, matrices)
    check_activations(x_TH, gate_FH.shape[1])
    x_TH = x_TH.contiguous()
    (tokens, hidden), (rows, cols) = x_TH.shape, down_FO.shape
    y_TO = torch.empty((tokens, cols))
    scratch = torch.empty(tokens * (hidden + 2 * rows))
    gate = scratch.data_ptr() + F32_BYTES * tokens * hidden
    packed = (
        pack_matrix(gate_FH, gate, rows)
        + pack_matrix(up_FH, gate + F32_BYTES * tokens * rows, rows)
        + pack_matrix(down_FO, y_TO.data_ptr(), rows)
    )
    rounds = linear.arithmetic is Arithmetic.BF16
    of_x = x_TH.data_ptr(), tokens, hidden, norm_H.data_ptr()
    pool.call("tpiedge_ffn", *of_x, eps, rounds, packed, cols, scratch.data_ptr())
    return y_TO


def mini_sequences(tokens: int, hidden: int, columns: int, arithmetic: Arithmetic) -> Iterator[slice]:
    """Yields the rows of each mini-sequence. All but the last have a multiple of 16 rows."""
    row_bytes = max(1, columns) * (10 if arithmetic is Arithmetic.BF16 else 8)
    rows = min(SCRATCH_BYTES // row_bytes, NORMED_BYTES // (4 * max(1, hidden)))
    step = max(_ROWS, rows // _ROWS * _ROWS)
    return (slice(first, min(first + step, tokens)) for first in range(0, tokens, step))


class FusedFFN:
    """An FFN block of quantised matrices (gate, up, down). Their memory must not move. Raises ValueError."""

    def __init__(
        self,
        norm_H: Tensor,
        eps: float,
        matrices: tuple[PanelMatrix, PanelMatrix, PanelMatrix],
        pool: Pool,
        grid: Grid,
        biases: Biases = (None, None),
    ) -> None:
        gate, up, down = matrices
        _check_weights(norm_H, matrices)
        for bias_F in biases:
            if bias_F is not None:
                check_f32("a bias", bias_F, (gate.rows,))
        self.packed = (
            pack_panels(gate, bias_R=biases[0])
            + pack_panels(up, bias_R=biases[1])
            + pack_row_parallel(down, grid.exponent, grid.most)
        )
        self.norm_H, self.eps, self._pool = norm_H, eps, pool
        self._kept = matrices, biases  # their addresses are packed
        self.hidden, self.outputs = gate.cols, down.cols
        self.scratch = gate.cols + 2 * gate.rows
        self._inner = gate.rows

    def run(self, x_TH: Tensor) -> Tensor:
        """Returns integers [T, O], in units of 2**grid.exponent."""
        check_activations(x_TH, self.hidden)
        x_TH = x_TH.contiguous()
        pieces = list(mini_sequences(len(x_TH), self.hidden, self._inner, Arithmetic.INT8))
        scratch = torch.empty(pieces[0].stop * self.scratch if pieces else 0)

        def compute(sums_TO: Tensor, wide: bool) -> bool:
            return all(
                self._pool.call(
                    "tpiedge_panels_ffn",
                    self.packed,
                    x_TH.data_ptr() + F32_BYTES * self.hidden * rows.start,
                    sums_TO.data_ptr() + sums_TO.itemsize * self.outputs * rows.start,
                    rows.stop - rows.start,
                    self.norm_H.data_ptr(),
                    self.eps,
                    scratch.data_ptr(),
                    wide,
                )
                for rows in pieces
            )

        return sums_of((len(x_TH), self.outputs), compute)


def _check_weights(norm_H: Tensor, matrices: tuple[Weight, Weight, Weight]) -> None:
    gate_FH, up_FH, down_FO = matrices
    check_weight(gate_FH, input_dim=1)
    check_weight(up_FH, input_dim=1)
    check_weight(down_FO, input_dim=0)
    check_f32("the norm's weight", norm_H, (gate_FH.shape[1],))
    if gate_FH.shape != up_FH.shape or gate_FH.shape[0] != down_FO.shape[0]:
        raise ValueError(
            f"gate {list(gate_FH.shape)}, up {list(up_FH.shape)} and down {list(down_FO.shape)} do not fit together"
        )
