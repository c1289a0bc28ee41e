"""Computes a node's part of a mixture of experts, whose router scores E experts and gives each token k of them. T
tokens, H hidden size and outputs, F columns of an expert.

A token's choice and weights have the same bits on every machine, with native kernels and without. A logit is summed in
16 lanes: column c belongs to lane c % 16, its product is rounded, and so is each sum. Then lanes i and i + 8 are added,
i and i + 4, i and i + 2, i and i + 1. Exponentials are whole numbers, as in draw.py, so their sums have no order.
"""

import struct
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tpiedge.kernels.draw import mass_bits, masses_of
from tpiedge.kernels.elementwise import Activation, activate, rms_norm
from tpiedge.kernels.ffn import check_ffn
from tpiedge.kernels.grid import NOT_A_NUMBER, Grid, sums_of
from tpiedge.kernels.library import (
    F32_BYTES,
    NATIVE_TOKENS,
    Pool,
    check_f32,
    pack_panels,
    pack_row_parallel,
)
from tpiedge.kernels.linear import Linear, check_activations
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight

_F32 = NDArray[np.float32]
_LANES = 16
_FLOATS = 1 << 18  # of the lanes of the tokens that are routed together
_MOST_EXPERTS = 1024  # as in native/experts.cpp
#: Rows that a native call takes at once. It needs up to 8 MiB for what some experts compute, and for each row 8 bytes a
#: hidden column and 4 an expert.
MOST_TOKENS = 512

# As the end of PanelExperts of native/interface.h: numbers; router, norm, eps, activation.
_SIZES = struct.Struct("=4q")
_REST = struct.Struct("=2qdq")


def route(
    h_TH: Tensor,
    router_EH: Tensor,
    chosen: int,
    normalised: bool,
    pool: Pool | None,
) -> tuple[Tensor, Tensor]:
    """Returns the chosen experts int64 [T, k], ascending, and their weights f32 [T, k].

    The first of the largest logits win. Weights are parts of the softmax of all logits, or of the chosen if
    `normalised`; NaN for infinite logits.
    """
    count, hidden = router_EH.shape
    _check_router(router_EH, (count, hidden), chosen)
    check_activations(h_TH, hidden)
    if pool is not None:
        h_TH, tokens = h_TH.contiguous(), len(h_TH)
        logits_TE = torch.empty((tokens, count))
        chosen_Tk, weights_Tk = (
            torch.empty((tokens, chosen), dtype=torch.int64),
            torch.empty((tokens, chosen)),
        )
        of_router = router_EH.data_ptr(), count, chosen, normalised, logits_TE.data_ptr()
        results = chosen_Tk.data_ptr(), weights_Tk.data_ptr()
        pool.call("tpiedge_route", h_TH.data_ptr(), tokens, hidden, *of_router, *results)
        return chosen_Tk, weights_Tk
    h, router, step = h_TH.contiguous().numpy(), router_EH.numpy(), max(1, _FLOATS // (_LANES * count))
    logits = [_logits(h[first : first + step], router) for first in range(0, len(h), step)]
    all_TE = np.concatenate([np.empty((0, count), np.float32), *logits])
    ids, weights = _choose(all_TE, chosen, normalised)
    return torch.from_numpy(ids), torch.from_numpy(weights)


def experts(
    x_TH: Tensor,
    norm_H: Tensor | None,
    eps: float,
    router_EH: Tensor,
    expert: Callable[[int], tuple[Weight, Weight, Weight]],
    chosen: int,
    normalised: bool,
    linear: Linear,
    activation: Activation = Activation.SILU,
    grid: Grid | None = None,
) -> Tensor:
    """Returns f32 [T, H], or integers in units of 2**grid.exponent. `expert` returns an expert's gate, up and down.
    `grid` is for quantised experts in INT8. Weights multiply what enters down. Experts are added in their order.
    """
    check_activations(x_TH, router_EH.shape[1])
    h_TH = normed(x_TH, norm_H, eps, linear.pool)
    chosen_Tk, weights_Tk = route(h_TH, router_EH, chosen, normalised, linear.pool)
    y_TH = torch.zeros(x_TH.shape, dtype=torch.float32 if grid is None else torch.int64)
    of_one = None if grid is None else Grid(grid.exponent, grid.most // chosen)
    narrow = grid is not None
    for number in np.unique(chosen_Tk.numpy()).tolist():
        gate, up, down = expert(number)
        rows, at = (chosen_Tk == number).nonzero(as_tuple=True)
        # The bits of more rows at once may depend on their number.
        for rows_R, at_R in zip(rows.split(NATIVE_TOKENS), at.split(NATIVE_TOKENS), strict=True):
            gate_RF, up_RF = linear.project_many(h_TH[rows_R], (gate, up))
            inner_RF = activate(gate_RF, up_RF, activation, linear.pool)
            inner_RF *= weights_Tk[rows_R, at_R, None]
            part_RH = linear.contract(inner_RF, down, of_one)
            narrow &= part_RH.dtype is torch.int32
            y_TH[rows_R] = _sum(y_TH[rows_R], part_RH)
    return y_TH.int() if narrow else y_TH


def _sum(sum_RH: Tensor, part_RH: Tensor) -> Tensor:
    if sum_RH.dtype is torch.float32:
        return sum_RH + part_RH
    part_RH = part_RH.long()
    lost_RH = (sum_RH == NOT_A_NUMBER) | (part_RH == NOT_A_NUMBER)
    return (sum_RH + part_RH).masked_fill_(lost_RH, NOT_A_NUMBER)


class FusedExperts:
    """A block of quantised experts. `matrices` are the first expert's gate, up and down; those of other experts lie
    `expert_nbytes` further each. Their memory must not move. Raises ValueError."""

    def __init__(
        self,
        norm_H: Tensor | None,
        eps: float,
        router_EH: Tensor,
        matrices: tuple[PanelMatrix, PanelMatrix, PanelMatrix],
        experts: int,
        expert_nbytes: int,
        chosen: int,
        normalised: bool,
        pool: Pool,
        grid: Grid,
        activation: Activation = Activation.SILU,
    ) -> None:
        gate, up, down = matrices
        self.hidden, self.outputs = check_ffn(norm_H, matrices), down.cols
        _check_router(router_EH, (experts, self.hidden), chosen)
        for w in matrices:
            needed = (experts - 1) * expert_nbytes + w.nbytes
            if w.data_B.numel() < needed or w.rows_per_unit != gate.rows_per_unit:
                raise ValueError(
                    f"{experts} experts of {w.shape} in units of {w.rows_per_unit} need {needed} bytes"
                )
        self.packed = (
            b"".join((pack_panels(gate), pack_panels(up), pack_row_parallel(down, grid.exponent, grid.most)))
            + _SIZES.pack(experts, expert_nbytes, chosen, normalised)
            + _REST.pack(
                router_EH.data_ptr(), 0 if norm_H is None else norm_H.data_ptr(), eps, activation.number
            )
        )
        self._pool = pool
        self._kept = matrices, norm_H, router_EH  # their addresses are packed
        self.scratch = self.hidden

    def run(self, x_TH: Tensor) -> Tensor:
        """Returns integers [T, O], in units of 2**grid.exponent."""
        check_activations(x_TH, self.hidden)
        x_TH = x_TH.contiguous()
        scratch = torch.empty(min(len(x_TH), MOST_TOKENS) * self.scratch)

        def compute(sums_TO: Tensor, wide: bool) -> bool:
            return all(
                self._pool.call(
                    "tpiedge_panels_experts",
                    self.packed,
                    x_TH.data_ptr() + F32_BYTES * self.hidden * first,
                    sums_TO.data_ptr() + sums_TO.itemsize * self.outputs * first,
                    min(MOST_TOKENS, len(x_TH) - first),
                    scratch.data_ptr(),
                    wide,
                )
                for first in range(0, len(x_TH), MOST_TOKENS)
            )

        return sums_of((len(x_TH), self.outputs), compute)


def _check_router(router_EH: Tensor, shape: tuple[int, int], chosen: int) -> None:
    check_f32("a router", router_EH, shape)
    if not 1 <= chosen <= shape[0] <= _MOST_EXPERTS:
        raise ValueError(f"{chosen} of {shape[0]} experts are to be chosen; there may be {_MOST_EXPERTS}")


def normed(x_TH: Tensor, norm_H: Tensor | None, eps: float, pool: Pool | None) -> Tensor:
    """Returns what the native rms_norm returns, also without native kernels: all nodes must choose the same experts."""
    if norm_H is None or pool is not None:
        return x_TH if norm_H is None else rms_norm(x_TH, norm_H, eps, pool)
    x, width = x_TH.contiguous().numpy(), x_TH.shape[1]
    whole = width // (4 * _LANES) * 4 * _LANES
    sums = np.zeros((len(x), 4, _LANES), np.float32)
    with np.errstate(all="ignore"):
        for first in range(0, whole, 4 * _LANES):
            sums = _add_squares(sums, x[:, first : first + 4 * _LANES].reshape(sums.shape))
        for first in range(whole, width, _LANES):
            some = x[:, first : first + _LANES]
            sums[:, 0] = _add_squares(sums[:, 0], np.pad(some, ((0, 0), (0, _LANES - some.shape[1]))))
        mean_T1 = _added((sums[:, 0] + sums[:, 1]) + (sums[:, 2] + sums[:, 3]))[:, None] / np.float32(width)
        factor_T1 = np.float32(1) / np.sqrt(mean_T1 + np.float32(eps))
        return torch.from_numpy(norm_H.numpy() * (x * factor_T1))


def _logits(h_TH: _F32, router_EH: _F32) -> _F32:
    rest = -h_TH.shape[1] % _LANES
    h_TH, router_EH = (np.pad(x, ((0, 0), (0, rest))) for x in (h_TH, router_EH))
    lanes = np.zeros((len(h_TH), len(router_EH), _LANES), np.float32)
    with np.errstate(all="ignore"):
        for first in range(0, h_TH.shape[1], _LANES):
            some = slice(first, first + _LANES)
            lanes += h_TH[:, None, some] * router_EH[:, some]
        return _added(lanes)


def _added(lanes: _F32) -> _F32:
    """Returns the sums of the last dimension of 16."""
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def _choose(logits_TE: _F32, chosen: int, normalised: bool) -> tuple[NDArray[np.int64], _F32]:
    finite_T1 = np.isfinite(logits_TE).all(1, keepdims=True)
    logits_TE = np.where(finite_T1, logits_TE, np.float32(0))
    chosen_Tk = np.sort(np.argsort(-logits_TE, axis=1, kind="stable")[:, :chosen], axis=1).astype(np.int64)
    masses_TE = masses_of(logits_TE, 1.0, mass_bits(logits_TE.shape[1]))
    masses_Tk = np.take_along_axis(masses_TE, chosen_Tk, 1)
    total_T1 = (masses_Tk if normalised else masses_TE).sum(1, keepdims=True)
    return chosen_Tk, np.where(finite_T1, masses_Tk / total_T1, np.nan).astype(np.float32)


def _add_squares(sums: _F32, x: _F32) -> _F32:
    """Returns sums + x * x, rounded once: in f64 a square is exact, and a sum that is not is rounded to odd."""
    square = x.astype(np.float64) ** 2
    total = square + sums
    back = total - square
    error = (square - (total - back)) + (sums - back)
    bits = total.view(np.int64)
    moved = bits + np.where(
        (error != 0) & np.isfinite(error) & (bits & 1 == 0), np.where(error > 0, 1, -1), 0
    )
    return moved.view(np.float64).astype(np.float32)
