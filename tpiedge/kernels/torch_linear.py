"""Products of activations with weights through torch, in bounded scratch memory.

T tokens, I input features, O output features, R rows of the stored weight.
torch's products are equal to rounding only: bits may depend on the number of tokens and of threads.
"""

import torch
from torch import Tensor

from tpiedge.kernels.arithmetic import Arithmetic

# Weights in bf16 are widened by tiles of rows, so that a block never exists twice in memory.
_SCRATCH_ELEMENTS = 1 << 20


def project(x_TI: Tensor, w_RI: Tensor, arithmetic: Arithmetic) -> Tensor:
    """x @ w.T in f32. In BF16 arithmetic with bf16 weights torch also rounds the result to bf16."""
    if arithmetic is Arithmetic.BF16:
        if w_RI.dtype is torch.bfloat16:
            return torch.mm(x_TI.bfloat16(), w_RI.t()).float()
        x_TI = x_TI.bfloat16().float()
    if w_RI.dtype is torch.float32:
        return torch.mm(x_TI, w_RI.t())
    rows, cols = w_RI.shape
    y_TR = x_TI.new_empty((x_TI.shape[0], rows))
    step = _tile_rows(rows, cols)
    scratch = w_RI.new_empty((step, cols), dtype=torch.float32)
    for start in range(0, rows, step):
        tile = _widen(w_RI[start : start + step], scratch)
        torch.mm(x_TI, tile.t(), out=y_TR[:, start : start + step])
    return y_TR


def contract(x_TR: Tensor, w_RO: Tensor, arithmetic: Arithmetic) -> Tensor:
    """x @ w in f32. In BF16 arithmetic with bf16 weights torch also rounds the result to bf16."""
    if arithmetic is Arithmetic.BF16:
        if w_RO.dtype is torch.bfloat16:
            return torch.mm(x_TR.bfloat16(), w_RO).float()
        x_TR = x_TR.bfloat16().float()
    if w_RO.dtype is torch.float32:
        return torch.mm(x_TR, w_RO)
    rows, cols = w_RO.shape
    y_TO = x_TR.new_zeros((x_TR.shape[0], cols))
    step = _tile_rows(rows, cols)
    scratch = w_RO.new_empty((step, cols), dtype=torch.float32)
    for start in range(0, rows, step):
        y_TO.addmm_(x_TR[:, start : start + step], _widen(w_RO[start : start + step], scratch))
    return y_TO


def _tile_rows(rows: int, cols: int) -> int:
    return max(1, min(rows, _SCRATCH_ELEMENTS // max(1, cols)))


def _widen(tile: Tensor, scratch: Tensor) -> Tensor:
    return scratch[: tile.shape[0]].copy_(tile)
