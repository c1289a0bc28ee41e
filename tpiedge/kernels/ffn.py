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
    check_f32,
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


def ffn(
    x_TH: Tensor,
    norm_H: Tensor | None,
    eps: float,
    gate_FH: Weight | None,
    up_FH: Weight,
    down_FO: Weight,
    linear: Linear,
    biases: Biases = (None, None),
    activation: Activation = Activation.SILU,
) -> Tensor:
    """Returns f32 [T, O]. INT8 is for f32 and bf16 matrices only. Without `gate_FH`, the activation is of up."""
    if biases == (None, None):
        found_TO = _few(x_TH, (norm_H, eps), (gate_FH, up_FH, down_FO), linear, activation)
        if found_TO is not None:
            return found_TO
    inner = [(w, bias_F) for w, bias_F in zip((gate_FH, up_FH), biases, strict=True) if w is not None]

    def computed(x_RH: Tensor) -> Tensor:
        h_RH = x_RH if norm_H is None else rms_norm(x_RH, norm_H, eps, linear.pool)
        parts = linear.project_many(h_RH, [w for w, _ in inner])
        for y_RF, (_, bias_F) in zip(parts, inner, strict=True):
            if bias_F is not None:
                y_RF += bias_F
        inner_RF = activate(parts[0], parts[1] if gate_FH is not None else None, activation, linear.pool)
        del parts, y_RF
        return linear.contract(inner_RF, down_FO)

    tokens, hidden = x_TH.shape
    pieces = list(mini_sequences(tokens, hidden, up_FH.shape[0], linear.arithmetic))
    if len(pieces) <= 1:
        return computed(x_TH)
    # Allocated first: amid the large temporaries it would keep their memory from returning to the system.
    y_TO = torch.empty((len(x_TH), down_FO.shape[1]))
    for rows in pieces:
        y_TO[rows] = computed(x_TH[rows])
    return y_TO


def _few(
    x_TH: Tensor,
    norm: tuple[Tensor | None, float],
    matrices: tuple[Weight | None, Weight, Weight],
    linear: Linear,
    activation: Activation,
) -> Tensor | None:
    pool, (norm_H, eps), (gate_FH, up_FH, down_FO) = linear.pool_of(len(x_TH)), norm, matrices
    if (
        pool is None
        or isinstance(gate_FH, PanelMatrix)
        or not (isinstance(up_FH, Tensor) and isinstance(down_FO, Tensor))
    ):
        return None
    _check_weights(norm_H, matrices)
    check_activations(x_TH, up_FH.shape[1])
    x_TH = x_TH.contiguous()
    (tokens, hidden), (rows, cols) = x_TH.shape, down_FO.shape
    y_TO = torch.empty((tokens, cols))
    scratch = torch.empty(tokens * (hidden + 2 * rows))
    gate = scratch.data_ptr() + F32_BYTES * tokens * hidden
    packed = (
        (NO_MATRIX if gate_FH is None else pack_matrix(gate_FH, gate, rows))
        + pack_matrix(up_FH, gate + F32_BYTES * tokens * rows, rows)
        + pack_matrix(down_FO, y_TO.data_ptr(), rows)
    )
    rounds = linear.arithmetic is Arithmetic.BF16
    of_x = x_TH.data_ptr(), tokens, hidden, _address(norm_H)
    pool.call("tpiedge_ffn", *of_x, eps, rounds, packed, activation.number, cols, scratch.data_ptr())
    return y_TO


def mini_sequences(tokens: int, hidden: int, columns: int, arithmetic: Arithmetic) -> Iterator[slice]:
    """Yields the rows of each mini-sequence. All but the last have a multiple of 16 rows."""
    row_bytes = max(1, columns) * (10 if arithmetic is Arithmetic.BF16 else 8)
    rows = min(SCRATCH_BYTES // row_bytes, NORMED_BYTES // (4 * max(1, hidden)))
    step = max(_ROWS, rows // _ROWS * _ROWS)
    return (slice(first, min(first + step, tokens)) for first in range(0, tokens, step))


class FusedFFN:
    """An FFN block of quantised matrices (gate or None, up, down). Their memory must not move. Raises ValueError."""

    def __init__(
        self,
        norm_H: Tensor | None,
        eps: float,
        matrices: tuple[PanelMatrix | None, PanelMatrix, PanelMatrix],
        pool: Pool,
        grid: Grid,
        biases: Biases = (None, None),
        activation: Activation = Activation.SILU,
    ) -> None:
        gate, up, down = matrices
        _check_weights(norm_H, matrices)
        for w, bias_F in zip((gate, up), biases, strict=False):
            if bias_F is not None:
                check_f32("a bias", bias_F, (0 if w is None else up.rows,))
        self.packed = (
            (NO_PANELS if gate is None else pack_panels(gate, bias_R=biases[0]))
            + pack_panels(up, bias_R=biases[1])
            + pack_row_parallel(down, grid.exponent, grid.most)
            + _REST.pack(_address(norm_H), eps, activation.number)
        )
        self._pool = pool
        self._kept = matrices, biases, norm_H  # their addresses are packed
        self.hidden, self.outputs = up.cols, down.cols
        self._inner = up.rows
        self.scratch = up.cols + 2 * up.rows

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
                    scratch.data_ptr(),
                    wide,
                )
                for rows in pieces
            )

        return sums_of((len(x_TH), self.outputs), compute)


def _address(norm_H: Tensor | None) -> int:
    return 0 if norm_H is None else norm_H.data_ptr()


def _check_weights(norm_H: Tensor | None, matrices: tuple[Weight | None, Weight, Weight]) -> None:
    gate_FH, up_FH, down_FO = matrices[0] if matrices[0] is not None else matrices[1], *matrices[1:]
    check_weight(gate_FH, input_dim=1)
    check_weight(up_FH, input_dim=1)
    check_weight(down_FO, input_dim=0)
    if norm_H is not None:
        check_f32("the norm's weight", norm_H, (up_FH.shape[1],))
    if gate_FH.shape != up_FH.shape or gate_FH.shape[0] != down_FO.shape[0]:
        raise ValueError(
            f"gate {list(gate_FH.shape)}, up {list(up_FH.shape)} and down {list(down_FO.shape)} do not fit together"
        )
