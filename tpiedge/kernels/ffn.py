"""A node's part of an FFN block without biases, as one operation.

T tokens, H hidden size, F stored rows of the share, O output features.
"""

import torch
from torch import Tensor

from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.library import NATIVE_TOKENS
from tpiedge.kernels.linear import Linear, check_product, check_weight
from tpiedge.kernels.norm import check_norm, rms_norm
from tpiedge.kernels.swiglu import swiglu

__all__ = ["ffn"]


def ffn(
    x_TH: Tensor, norm_H: Tensor, eps: float, gate_FH: Tensor, up_FH: Tensor, down_FO: Tensor, linear: Linear
) -> Tensor:
    """[T, O] f32: contract(swiglu(project(h, gate), project(h, up)), down) of h = rms_norm(x).

    For few tokens one native call, with the same bits: between two products Python's own code would have been
    driven out of the CPU's caches by the weights.
    """
    if linear.pool is None or x_TH.shape[0] > NATIVE_TOKENS:
        h_TH = rms_norm(x_TH, norm_H, eps, linear.pool)
        gate_TF, up_TF = linear.project_many(h_TH, (gate_FH, up_FH))
        return linear.contract(swiglu(gate_TF, up_TF, linear.pool), down_FO)
    _check(x_TH, norm_H, gate_FH, up_FH, down_FO)
    y_TO = torch.empty((x_TH.shape[0], down_FO.shape[1]))
    rounds = linear.arithmetic is Arithmetic.BF16
    linear.pool.ffn(x_TH.contiguous(), norm_H, eps, (gate_FH, up_FH, down_FO), rounds, y_TO)
    return y_TO


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
