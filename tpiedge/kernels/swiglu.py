"""The gated activation of Llama's FFN."""

import torch.nn.functional as F
from torch import Tensor

__all__ = ["swiglu"]


def swiglu(gate_TF: Tensor, up_TF: Tensor) -> Tensor:
    """silu(gate) * up. Zero columns (the padding of a short tile) stay zero."""
    return F.silu(gate_TF).mul_(up_TF)
