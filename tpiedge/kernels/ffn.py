"""A node's part of an FFN block, as one operation.

T tokens, H hidden size, F stored rows of the share, O output features.

Many tokens pass in mini-sequences (MOM, section 3.1): gate and up, T x F floats each, are the largest temporaries of a
prefill, and their rows do not depend on each other. So with the rows after the norm, T x H, memory stays within
SCRATCH_BYTES and NORMED_BYTES whatever the prompt's length and the share. What the native products keep meanwhile comes
on top: of quantised matrices 4 MiB of activations and 4 MiB of sums at most (native/panels_interface.cpp), of f32 and
bf16 ones the sums of 8 slices, 32 bytes for each token and output (native/interface.cpp).
"""

from collections.abc import Iterator
from typing import TypeGuard

import torch
from torch import Tensor

from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.dispatch import for_product
from tpiedge.kernels.grid import Grid, sums_of
from tpiedge.kernels.library import Pool, pack_panels, pack_row_parallel
from tpiedge.kernels.linear import Linear, check_activations, check_bias, check_weight
from tpiedge.kernels.norm import check_norm_weight, rms_norm
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight
from tpiedge.kernels.swiglu import swiglu

#: What gate and up may take. With 4096 x 11008 a message of 1 MiB still passes as one; halves of it cost a fifth more.
SCRATCH_BYTES = 8 << 20
#: What the rows after the norm may take: those of a message, 1 MiB, still pass as one.
NORMED_BYTES = 2 << 20

_F32_BYTES = 4
_ROWS = 16  # a mini-sequence is so many rows, or a multiple: the tiles of torch's and the native kernels

Biases = tuple[Tensor | None, Tensor | None]
"""The biases of gate and up, [F] each."""
Matrices = tuple[Weight, Weight, Weight]
"""Gate, up, down."""


def ffn(
    x_TH: Tensor,
    norm_H: Tensor,
    eps: float,
    gate_FH: Weight,
    up_FH: Weight,
    down_FO: Weight,
    linear: Linear,
    biases: Biases = (None, None),
    grid: Grid | None = None,
) -> Tensor:
    """[T, O]: contract(swiglu(project(h, gate), project(h, up)), down) of h = rms_norm(x); f32, or of quantised
    matrices sums of `grid`.

    For few tokens without biases one native call, with the same bits: between two products Python's own code would
    have been driven out of the CPU's caches by the weights. With quantised matrices one for each mini-sequence.
    """
    matrices = gate_FH, up_FH, down_FO
    pool = for_product(linear.pool, down_FO, x_TH.shape[0])
    if pool is not None:
        if all_panels(matrices) and grid is not None:
            return FusedFFN(norm_H, eps, matrices, pool, grid, biases).run(x_TH)
        if _all_tensors(matrices) and biases == (None, None):
            rounds = linear.arithmetic is Arithmetic.BF16
            return _few(x_TH, norm_H, eps, matrices, rounds, pool)
    return _in_turn(x_TH, norm_H, eps, matrices, linear, biases, grid)


def mini_sequences(tokens: int, hidden: int, columns: int, arithmetic: Arithmetic) -> Iterator[slice]:
    """The rows of each mini-sequence: a multiple of 16, 16 at least, whose `columns` of gate and up fit SCRATCH_BYTES
    and whose normed rows fit NORMED_BYTES.

    bf16 products exist in both precisions for a moment.
    """
    row_bytes = max(1, columns) * (10 if arithmetic is Arithmetic.BF16 else 8)
    rows = min(SCRATCH_BYTES // row_bytes, NORMED_BYTES // (4 * max(1, hidden)))
    step = max(_ROWS, rows // _ROWS * _ROWS)
    return (slice(first, min(first + step, tokens)) for first in range(0, tokens, step))


class FusedFFN:
    """A block of quantised matrices, gate, up and down, that is checked and packed once: for as long as the matrices
    stay where they are. Raises ValueError for what does not fit together."""

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
        _check_biases(biases, gate.rows)
        self.packed = (
            pack_panels(gate, bias_R=biases[0])
            + pack_panels(up, bias_R=biases[1])
            + pack_row_parallel(down, grid.exponent, grid.most)
        )
        self.norm_H, self.eps, self._pool = norm_H, eps, pool
        self._kept = matrices, biases  # whose addresses are packed
        self.hidden, self.outputs = gate.cols, down.cols
        #: Floats for each token.
        self.scratch = gate.cols + 2 * gate.rows
        self._inner = gate.rows

    def run(self, x_TH: Tensor) -> Tensor:
        """[T, O]: sums of the grid, one mini-sequence after the other."""
        check_activations(x_TH, self.hidden)
        tokens, hidden = x_TH.shape
        x_TH = x_TH.contiguous()
        pieces = list(mini_sequences(tokens, hidden, self._inner, Arithmetic.INT8))
        scratch = torch.empty(pieces[0].stop * self.scratch if pieces else 0)

        def compute(sums_TO: Tensor, wide: bool) -> bool:
            return all(self._compute(x_TH, sums_TO, rows, scratch, wide) for rows in pieces)

        return sums_of((tokens, self.outputs), compute)

    def _compute(self, x_TH: Tensor, sums_TO: Tensor, rows: slice, scratch: Tensor, wide: bool) -> bool:
        return self._pool.ffn_panels(
            self.packed,
            x_TH.data_ptr() + _F32_BYTES * self.hidden * rows.start,
            sums_TO.data_ptr() + sums_TO.itemsize * self.outputs * rows.start,
            rows.stop - rows.start,
            self.norm_H.data_ptr(),
            self.eps,
            scratch.data_ptr(),
            wide,
        )


def all_panels(matrices: Matrices) -> TypeGuard[tuple[PanelMatrix, PanelMatrix, PanelMatrix]]:
    """Whether gate, up and down are quantised."""
    return all(isinstance(w, PanelMatrix) for w in matrices)


def _all_tensors(matrices: Matrices) -> TypeGuard[tuple[Tensor, Tensor, Tensor]]:
    return all(isinstance(w, Tensor) for w in matrices)


def _few(
    x_TH: Tensor,
    norm_H: Tensor,
    eps: float,
    matrices: tuple[Tensor, Tensor, Tensor],
    rounds: bool,
    pool: Pool,
) -> Tensor:
    _check_weights(norm_H, matrices)
    check_activations(x_TH, matrices[0].shape[1])
    y_TO = torch.empty((x_TH.shape[0], matrices[2].shape[1]))
    pool.ffn(x_TH.contiguous(), norm_H, eps, matrices, rounds, y_TO)
    return y_TO


def _in_turn(
    x_TH: Tensor,
    norm_H: Tensor,
    eps: float,
    matrices: Matrices,
    linear: Linear,
    biases: Biases,
    grid: Grid | None,
) -> Tensor:
    """One mini-sequence after the other."""
    gate_FH, _, down_FO = matrices
    tokens, hidden = x_TH.shape
    pieces = list(mini_sequences(tokens, hidden, gate_FH.shape[0], linear.arithmetic))
    if len(pieces) <= 1:
        return _parts(x_TH, norm_H, eps, matrices, linear, biases, grid)
    # Before the parts: between their large temporaries it would keep those from going back to the system.
    kind = torch.int32 if isinstance(down_FO, PanelMatrix) else torch.float32
    y_TO = torch.empty((tokens, down_FO.shape[1]), dtype=kind)
    for rows in pieces:
        part_TO = _parts(x_TH[rows], norm_H, eps, matrices, linear, biases, grid)
        if part_TO.dtype is torch.int64:
            y_TO = y_TO.to(torch.int64)
        y_TO[rows] = part_TO
    return y_TO


def _parts(
    x_TH: Tensor,
    norm_H: Tensor,
    eps: float,
    matrices: Matrices,
    linear: Linear,
    biases: Biases,
    grid: Grid | None,
) -> Tensor:
    """Norm, products and SwiGLU one after the other; gate and up are overwritten in place."""
    gate_FH, up_FH, down_FO = matrices
    gate_TF, up_TF = linear.project_many(rms_norm(x_TH, norm_H, eps, linear.pool), (gate_FH, up_FH))
    for y_TF, bias_F in zip((gate_TF, up_TF), biases, strict=True):
        if bias_F is not None:
            y_TF += bias_F
    inner_TF = swiglu(gate_TF, up_TF, linear.pool)
    del gate_TF, up_TF, y_TF
    return linear.contract(inner_TF, down_FO, grid)


def _check_weights(norm_H: Tensor, matrices: Matrices) -> None:
    """The native kernels read raw memory, so what they are given is checked here."""
    gate_FH, up_FH, down_FO = matrices
    check_weight(gate_FH, input_dim=1)
    check_weight(up_FH, input_dim=1)
    check_weight(down_FO, input_dim=0)
    check_norm_weight(norm_H, gate_FH.shape[1])
    if gate_FH.shape != up_FH.shape or gate_FH.shape[0] != down_FO.shape[0]:
        raise ValueError(
            f"gate {list(gate_FH.shape)}, up {list(up_FH.shape)} and down {list(down_FO.shape)} do not fit together"
        )


def _check_biases(biases: Biases, rows: int) -> None:
    for bias_F in biases:
        if bias_F is not None:
            check_bias(bias_F, rows)
