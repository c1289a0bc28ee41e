"""The gated activation of Llama's FFN."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tpiedge.kernels.library import Pool


def swiglu(gate_TF: Tensor, up_TF: Tensor, pool: Pool | None = None) -> Tensor:
    """silu(gate) * up, which takes the memory of `gate`, or not. Zero columns (the padding of a short tile) stay zero.

    With the native kernels of `pool` a token's bits do not depend on the others.
    """
    if pool is None:
        return F.silu(gate_TF, inplace=True).mul_(up_TF)
    for x_TF in (gate_TF, up_TF):
        if x_TF.dtype is not torch.float32 or not x_TF.is_cpu or not x_TF.is_contiguous():
            raise ValueError(f"gate or up are {list(x_TF.shape)} {x_TF.dtype}, not contiguous f32 in memory")
    if gate_TF.shape != up_TF.shape:
        raise ValueError(f"gate {list(gate_TF.shape)} and up {list(up_TF.shape)} differ")
    y_TF = torch.empty(gate_TF.shape)
    pool.swiglu(gate_TF, up_TF, y_TF)
    return y_TF
