"""A node's part of an FFN block, as one operation.

T tokens, H hidden size, F stored rows of the share, O output features.

Many tokens pass in mini-sequences (MOM, section 3.1): gate and up, T x F floats each, are the largest temporaries of a
prefill, and their rows do not depend on each other. So memory stays within SCRATCH_BYTES whatever the prompt's length.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.library import NATIVE_TOKENS
from tpiedge.kernels.linear import Linear, check_product, check_weight
from tpiedge.kernels.norm import check_norm, rms_norm
from tpiedge.kernels.swiglu import swiglu

__all__ = ["SCRATCH_BYTES", "Biases", "ffn", "mini_sequences"]

#: What gate and up may take. With 4096 x 11008 a message of 1 MiB still passes as one; halves of it cost a fifth more.
SCRATCH_BYTES = 8 << 20

_ROWS = 16  # a mini-sequence is so many rows, or a multiple: the tiles of torch's and the native kernels

Biases = tuple[Tensor | None, Tensor | None]
"""Of gate and up, [F] each."""


def ffn(
    x_TH: Tensor,
    norm_H: Tensor,
    eps: float,
    gate_FH: Tensor,
    up_FH: Tensor,
    down_FO: Tensor,
    linear: Linear,
    biases: Biases = (None, None),
) -> Tensor:
    """[T, O] f32: contract(swiglu(project(h, gate), project(h, up)), down) of h = rms_norm(x).

    For few tokens without biases one native call, with the same bits: between two products Python's own code would
    have been driven out of the CPU's caches by the weights.
    """
    tokens = x_TH.shape[0]
    if linear.pool is None or tokens > NATIVE_TOKENS or biases != (None, None):
        return _in_turn(x_TH, norm_H, eps, (gate_FH, up_FH, down_FO), linear, biases)
    _check(x_TH, norm_H, gate_FH, up_FH, down_FO)
    y_TO = torch.empty((tokens, down_FO.shape[1]))
    rounds = linear.arithmetic is Arithmetic.BF16
    linear.pool.ffn(x_TH.contiguous(), norm_H, eps, (gate_FH, up_FH, down_FO), rounds, y_TO)
    return y_TO


def mini_sequences(tokens: int, columns: int, arithmetic: Arithmetic) -> Iterator[slice]:
    """The rows of each mini-sequence: a multiple of 16 whose `columns` of gate and up fit SCRATCH_BYTES, 16 at least.

    bf16 products exist in both precisions for a moment.
    """
    row_bytes = max(1, columns) * (10 if arithmetic is Arithmetic.BF16 else 8)
    step = max(_ROWS, SCRATCH_BYTES // row_bytes // _ROWS * _ROWS)
    return (slice(first, min(first + step, tokens)) for first in range(0, tokens, step))


def _in_turn(
    x_TH: Tensor,
    norm_H: Tensor,
    eps: float,
    matrices: tuple[Tensor, Tensor, Tensor],
    linear: Linear,
    biases: Biases,
) -> Tensor:
    """One mini-sequence after the other."""
    gate_FH, _, down_FO = matrices
    pieces = list(mini_sequences(x_TH.shape[0], gate_FH.shape[0], linear.arithmetic))
    if len(pieces) <= 1:
        return _parts(x_TH, norm_H, eps, matrices, linear, biases)
    y_TO = torch.empty((x_TH.shape[0], down_FO.shape[1]))
    for rows in pieces:
        y_TO[rows] = _parts(x_TH[rows], norm_H, eps, matrices, linear, biases)
    return y_TO


def _parts(
    x_TH: Tensor,
    norm_H: Tensor,
    eps: float,
    matrices: tuple[Tensor, Tensor, Tensor],
    linear: Linear,
    biases: Biases,
) -> Tensor:
    """Norm, products and SwiGLU one after the other; gate and up are overwritten in place."""
    gate_FH, up_FH, down_FO = matrices
    gate_TF, up_TF = linear.project_many(rms_norm(x_TH, norm_H, eps, linear.pool), (gate_FH, up_FH))
    for y_TF, bias_F in zip((gate_TF, up_TF), biases, strict=True):
        if bias_F is not None:
            y_TF += bias_F
    inner_TF = swiglu(gate_TF, up_TF, linear.pool)
    del gate_TF, up_TF, y_TF
    return linear.contract(inner_TF, down_FO)


def _check(x_TH: Tensor, norm_H: Tensor, gate_FH: Tensor, up_FH: Tensor, down_FO: Tensor) -> None:
    """The native kernels read raw memory, so what they are given is checked here."""
    check_product(x_TH, gate_FH, input_dim=1)
    check_product(x_TH, up_FH, input_dim=1)
    check_weight(down_FO)
    check_norm(x_TH[:, None], norm_H)
    if not gate_FH.shape[0] == up_FH.shape[0] == down_FO.shape[0]:
        raise ValueError(
            f"gate {list(gate_FH.shape)}, up {list(up_FH.shape)} and down {list(down_FO.shape)} differ in rows"
        )
