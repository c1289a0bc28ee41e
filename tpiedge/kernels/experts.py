"""Computes a node's part of a mixture of experts, whose router scores E experts and gives each token k of them. T
tokens, H hidden size and outputs, F columns of an expert.

A token's choice and weights have the same bits on every machine, with native kernels and without. A logit is summed in
16 lanes: column c belongs to lane c % 16, its product is rounded, and so is each sum. Then lanes i and i + 8 are added,
i and i + 4, i and i + 2, i and i + 1. Exponentials are whole numbers, as in draw.py, so their sums have no order.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray
from torch import Tensor

from tpiedge.kernels.draw import mass_bits, masses_of
from tpiedge.kernels.elementwise import Activation, activate, rms_norm
from tpiedge.kernels.ffn import check_ffn
from tpiedge.kernels.grid import MOST_OF_A_PART, NOT_A_NUMBER, Grid, sums_of
from tpiedge.kernels.library import (
    F32_BYTES,
    NATIVE_TOKENS,
    Pool,
    address,
    check_f32,
    pack_panels,
    pack_row_parallel,
)
from tpiedge.kernels.linear import Linear, check_activations
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight

_F32 = NDArray[np.float32]
Routed = tuple[Tensor, Tensor]  # what `route` returns
_LANES = 16
_FLOATS = 1 << 18  # of the lanes of the tokens that are routed together
_MOST_EXPERTS = 1024  # as in native/experts.cpp
#: Rows that a native call takes at once. It needs up to 8 MiB for what some experts compute, and for each row 8 bytes a
#: hidden column and 4 an expert.
MOST_TOKENS = 512

_ROUTER = struct.Struct("=7q")  # Router of native/interface.h
# As the end of PanelExperts of native/interface.h: expert's bytes, biases, norm, eps, activation.
_REST = struct.Struct("=5qdq")


class Router(NamedTuple):
    """Scores E experts for each token, and gives it `chosen` of them."""

    weights_EH: Tensor
    chosen: int
    #: Whether weights are parts of the softmax of the chosen experts' scores, else of all scores.
    normalised: bool
    #: Is added to the scores.
    bias_E: Tensor | None = None
    #: The weight of the norm of its input. None: it reads what the experts read.
    norm_H: Tensor | None = None
    #: Multiplies the experts' weights.
    scale_E: Tensor | None = None

    @property
    def packed(self) -> bytes:
        """The bytes of Router in native/interface.h."""
        vectors = map(address, (self.bias_E, self.norm_H, self.scale_E))
        experts = len(self.weights_EH)
        return _ROUTER.pack(self.weights_EH.data_ptr(), experts, self.chosen, self.normalised, *vectors)

    def check(self, hidden: int) -> None:
        """Raises ValueError unless it scores tokens of `hidden` columns."""
        experts = len(self.weights_EH)
        check_f32("a router", self.weights_EH, (experts, hidden))
        if not 1 <= self.chosen <= experts <= _MOST_EXPERTS:
            raise ValueError(
                f"{self.chosen} of {experts} experts are to be chosen; there may be {_MOST_EXPERTS}"
            )
        for x, width in ((self.bias_E, experts), (self.norm_H, hidden), (self.scale_E, experts)):
            if x is not None:
                check_f32("a router's vector", x, (width,))


class ExpertBiases(NamedTuple):
    """Biases of each expert. Those of gate and up have as many columns as the matrices have rows."""

    gate_EF: Tensor
    up_EF: Tensor
    #: Only one node has it.
    down_EO: Tensor | None

    def of_columns(self, own: slice, rows: int) -> "ExpertBiases":
        """Returns the biases of a node with some columns, for matrices of `rows`. Padding stays zero."""
        gate_EF, up_EF = (
            functional.pad(x_EF[:, own], (0, rows - x_EF[:, own].shape[1])).contiguous()
            for x_EF in (self.gate_EF, self.up_EF)
        )
        return ExpertBiases(gate_EF, up_EF, self.down_EO if own.start == 0 else None)

    def check(self, experts: int, columns: int, outputs: int) -> None:
        """Raises ValueError unless the biases have these shapes."""
        for x, width in ((self.gate_EF, columns), (self.up_EF, columns), (self.down_EO, outputs)):
            if x is not None:
                check_f32("experts' biases", x, (experts, width))


class Mixed(NamedTuple):
    """The sums [T, O], and the experts of each token int64 [T, k], ascending."""

    sums_TO: Tensor
    chosen_Tk: Tensor


def route(h_TH: Tensor, router: Router, pool: Pool | None) -> Routed:
    """Returns the chosen experts int64 [T, k], ascending, and their weights f32 [T, k]. The caller applies the router's
    norm.

    The first of the largest scores win. Weights are NaN if a score is not finite.
    """
    hidden = h_TH.shape[1]
    router.check(hidden)
    check_activations(h_TH, hidden)
    if pool is not None:
        h_TH, shape = h_TH.contiguous(), (len(h_TH), router.chosen)
        room_TE = torch.empty((len(h_TH), len(router.weights_EH)))
        chosen_Tk, weights_Tk = torch.empty(shape, dtype=torch.int64), torch.empty(shape)
        results = (x.data_ptr() for x in (room_TE, chosen_Tk, weights_Tk))
        pool.call("tpiedge_route", h_TH.data_ptr(), *h_TH.shape, router.packed, *results)
        return chosen_Tk, weights_Tk
    h, weights = h_TH.contiguous().numpy(), router.weights_EH.numpy()
    step = max(1, _FLOATS // (_LANES * len(weights)))
    logits = [_logits(h[first : first + step], weights) for first in range(0, len(h), step)]
    logits_TE = np.concatenate([np.empty((0, len(weights)), np.float32), *logits])
    ids, parts = _choose(logits_TE, router)
    return torch.from_numpy(ids), torch.from_numpy(parts)


def experts(
    x_TH: Tensor,
    norm_H: Tensor | None,
    eps: float,
    router: Router,
    expert: Callable[[int], tuple[Weight, Weight, Weight]],
    linear: Linear,
    activation: Activation = Activation.SILU,
    grid: Grid | None = None,
    biases: ExpertBiases | None = None,
) -> Mixed:
    """Returns sums in f32, or integers in units of 2**grid.exponent. `expert` returns an expert's gate, up and down.
    `grid` is for quantised experts in INT8. Weights multiply what enters down, and its bias. Experts are added in their
    order.
    """
    check_activations(x_TH, router.weights_EH.shape[1])
    h_TH = normed(x_TH, norm_H, eps, linear.pool)
    of_router_TH = h_TH if router.norm_H is None else normed(x_TH, router.norm_H, eps, linear.pool)
    chosen_Tk, weights_Tk = route(of_router_TH, router, linear.pool)
    y_TH = torch.zeros(x_TH.shape, dtype=torch.float32 if grid is None else torch.int64)
    down_EO = None if biases is None else biases.down_EO
    parts = router.chosen * (1 if down_EO is None else 2)
    of_one = None if grid is None else Grid(grid.exponent, grid.most // parts)
    narrow = grid is not None
    for number in np.unique(chosen_Tk.numpy()).tolist():
        gate, up, down = expert(number)
        rows, at = (chosen_Tk == number).nonzero(as_tuple=True)
        # The bits of more rows at once may depend on their number.
        for rows_R, at_R in zip(rows.split(NATIVE_TOKENS), at.split(NATIVE_TOKENS), strict=True):
            weights_R1 = weights_Tk[rows_R, at_R, None]
            gate_RF, up_RF = linear.project_many(h_TH[rows_R], (gate, up))
            if biases is not None:
                gate_RF += biases.gate_EF[number]
                up_RF += biases.up_EF[number]
            inner_RF = activate(gate_RF, up_RF, activation, linear.pool)
            inner_RF *= weights_R1
            found = [linear.contract(inner_RF, down, of_one)]
            if down_EO is not None:
                found.append(_part(weights_R1 * down_EO[number], of_one))
            for part_RH in found:
                narrow &= part_RH.dtype is torch.int32
                y_TH[rows_R] = _sum(y_TH[rows_R], part_RH)
    return Mixed(y_TH.int() if narrow else y_TH, chosen_Tk)


def _part(x_RH: Tensor, grid: Grid | None) -> Tensor:
    """Rounds numbers to the grid as the native kernels do."""
    if grid is None:
        return x_RH
    steps_RH = (x_RH * 2.0**-grid.exponent).round()
    within_RH = steps_RH.abs() <= MOST_OF_A_PART
    part_RH = steps_RH.masked_fill(~within_RH, 0).long().masked_fill_(~within_RH, NOT_A_NUMBER)
    return part_RH.int() if (part_RH.abs() <= grid.most).all() and within_RH.all() else part_RH


def _sum(sum_RH: Tensor, part_RH: Tensor) -> Tensor:
    if sum_RH.dtype is torch.float32:
        return sum_RH + part_RH
    part_RH = part_RH.long()
    lost_RH = (sum_RH == NOT_A_NUMBER) | (part_RH == NOT_A_NUMBER)
    return (sum_RH + part_RH).masked_fill_(lost_RH, NOT_A_NUMBER)


class FusedExperts:
    """A block of quantised experts. `matrices` are the first expert's gate, up and down; those of other experts lie
    `expert_nbytes` further each. The memory of all arguments must not move. Raises ValueError."""

    def __init__(
        self,
        norm_H: Tensor | None,
        eps: float,
        router: Router,
        matrices: tuple[PanelMatrix, PanelMatrix, PanelMatrix],
        expert_nbytes: int,
        pool: Pool,
        grid: Grid,
        activation: Activation = Activation.SILU,
        biases: ExpertBiases | None = None,
    ) -> None:
        gate, up, down = matrices
        self.hidden, self.outputs = check_ffn(norm_H, matrices), down.cols
        router.check(self.hidden)
        experts = len(router.weights_EH)
        if not down.rows:
            raise ValueError("experts have no columns on this node")
        if biases is not None:
            biases.check(experts, down.rows, down.cols)
        for w in matrices:
            needed = (experts - 1) * expert_nbytes + w.nbytes
            if w.data_B.numel() < needed or w.rows_per_unit != gate.rows_per_unit:
                raise ValueError(
                    f"{experts} experts of {w.shape} in units of {w.rows_per_unit} need {needed} bytes"
                )
        self.packed = (
            b"".join((pack_panels(gate), pack_panels(up), pack_row_parallel(down, grid.exponent, grid.most)))
            + router.packed
            + _REST.pack(
                expert_nbytes, *map(address, biases or (None,) * 3), address(norm_H), eps, activation.number
            )
        )
        self._pool, self._chosen = pool, router.chosen
        self._kept = matrices, norm_H, router, biases  # their addresses are packed
        self.scratch = self.hidden

    def run(self, x_TH: Tensor) -> Mixed:
        """Returns integers in units of 2**grid.exponent."""
        check_activations(x_TH, self.hidden)
        x_TH = x_TH.contiguous()
        scratch = torch.empty(min(len(x_TH), MOST_TOKENS) * self.scratch)
        chosen_Tk = torch.empty((len(x_TH), self._chosen), dtype=torch.int64)

        def compute(sums_TO: Tensor, wide: bool) -> bool:
            return all(
                self._pool.call(
                    "tpiedge_panels_experts",
                    self.packed,
                    x_TH.data_ptr() + F32_BYTES * self.hidden * first,
                    sums_TO.data_ptr() + sums_TO.itemsize * self.outputs * first,
                    chosen_Tk.data_ptr() + chosen_Tk.itemsize * self._chosen * first,
                    min(MOST_TOKENS, len(x_TH) - first),
                    scratch.data_ptr(),
                    wide,
                )
                for first in range(0, len(x_TH), MOST_TOKENS)
            )

        return Mixed(sums_of((len(x_TH), self.outputs), compute), chosen_Tk)


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


def _choose(logits_TE: _F32, router: Router) -> tuple[NDArray[np.int64], _F32]:
    if router.bias_E is not None:
        logits_TE = logits_TE + router.bias_E.numpy()
    finite_T1 = np.isfinite(logits_TE).all(1, keepdims=True)
    logits_TE = np.where(finite_T1, logits_TE, np.float32(0))
    order_TE = np.argsort(-logits_TE, axis=1, kind="stable")
    chosen_Tk = np.sort(order_TE[:, : router.chosen], axis=1).astype(np.int64)
    masses_TE = masses_of(logits_TE, 1.0, mass_bits(logits_TE.shape[1]))
    masses_Tk = np.take_along_axis(masses_TE, chosen_Tk, 1)
    total_T1 = (masses_Tk if router.normalised else masses_TE).sum(1, keepdims=True)
    weights_Tk = np.where(finite_T1, masses_Tk / total_T1, np.nan).astype(np.float32)
    return chosen_Tk, weights_Tk if router.scale_E is None else weights_Tk * router.scale_E.numpy()[chosen_Tk]


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
