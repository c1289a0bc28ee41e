"""The LM head, on rank 0 only (TPI-LLM, section 3.1), and embeddings. M positions, V vocabulary, R rows of it in a
tile."""

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tpiedge.errors import UserError
from tpiedge.kernels.elementwise import rms_norm
from tpiedge.kernels.library import NATIVE_TOKENS
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.panel_matrix import Weight
from tpiedge.memory.weights import NodeWeights
from tpiedge.model.config import ModelConfig

_ROWS = 64  # whose logits of a tile exist at a time


Scored: TypeAlias = tuple[tuple[int, float], ...]
"""Tokens with their log probabilities, the likeliest first."""


class Head:
    """Final norm and the product with the vocabulary's rows, tile by tile."""

    def __init__(self, config: ModelConfig, weights: NodeWeights, linear: Linear) -> None:
        self._config = config
        self._weights = weights
        self._linear = linear

    def logits(self, x_MH: Tensor, *, apart: bool = False, room: Tensor | None = None) -> Tensor:
        """[M, vocabulary] f32, in `room` if given; the caller bounds M. `apart`: a row's bits must not depend on the
        others."""
        h_MH = self.states(x_MH)
        rows = NATIVE_TOKENS if apart else max(1, len(h_MH))
        logits_MV = torch.empty(len(h_MH), self._config.vocab_size) if room is None else room
        for first, tile_RH in self._weights.head_tiles():
            for row in range(0, len(h_MH), rows):
                logits_MR = logits_MV[row : row + rows, first : first + tile_RH.shape[0]]
                if logits_MR.shape[1] == tile_RH.shape[0]:
                    self._linear.project_into(h_MH[row : row + rows], tile_RH, logits_MR)
                else:  # the vocabulary ends within the tile
                    logits_MR.copy_(self._of_tile(h_MH[row : row + rows], first, tile_RH))
        return logits_MV

    def scores(self, x_MH: Tensor, ids_M: Tensor, likeliest: int = 0) -> tuple[list[float], list[Scored]]:
        """The log probability of a token at each of M positions, and the `likeliest` there. Asks for every tile
        once."""
        count = min(likeliest, self._config.vocab_size)
        total_M = torch.full((len(ids_M),), -torch.inf)  # the logarithm of the sum of exponentials so far
        own_M = torch.empty(len(ids_M))
        best_MK = torch.full((len(ids_M), count), -torch.inf)
        best_ids_MK = torch.zeros(len(ids_M), count, dtype=torch.long)
        for first, tile_RH in self._weights.head_tiles():
            for rows in (slice(row, row + _ROWS) for row in range(0, len(ids_M), _ROWS)):
                logits_MR = self._of_tile(self.states(x_MH[rows]), first, tile_RH)
                total_M[rows] = torch.logaddexp(total_M[rows], logits_MR.logsumexp(dim=-1))
                places_M = ids_M[rows] - first
                here = torch.nonzero((places_M >= 0) & (places_M < logits_MR.shape[1]))[:, 0]
                own_M[rows][here] = logits_MR[here, places_M[here]]
                if count:
                    new_MK, places_MK = logits_MR.topk(min(count, logits_MR.shape[1]))
                    ids_ML = torch.cat([best_ids_MK[rows], places_MK + first], dim=1)
                    best_MK[rows], places_MK = torch.cat([best_MK[rows], new_MK], dim=1).topk(count)
                    best_ids_MK[rows] = ids_ML.gather(1, places_MK)
        best = zip(best_ids_MK.tolist(), (best_MK - total_M[:, None]).tolist(), strict=True)
        return (own_M - total_M).tolist(), [tuple(zip(*one, strict=True)) for one in best]

    def states(self, x_MH: Tensor) -> Tensor:
        weight = self._weights.head_vectors()["final_norm"]
        return rms_norm(x_MH, weight, self._config.rms_norm_eps, self._linear.pool)

    def _of_tile(self, h_MH: Tensor, first: int, tile_RH: Weight) -> Tensor:
        rows = min(tile_RH.shape[0], self._config.vocab_size - first)
        return self._linear.project(h_MH, tile_RH)[:, :rows]


class MeanState:
    """The mean of hidden states of `width` numbers, summed in f64 position by position: its bits do not depend on how
    many come at a time."""

    def __init__(self, width: int) -> None:
        self._total_H: NDArray[np.float64] = np.zeros(width)
        self.count = 0

    def add(self, h_MH: Tensor) -> None:
        for row_H in h_MH.numpy():
            self._total_H += row_H
        self.count += len(h_MH)

    @property
    def values(self) -> tuple[float, ...]:
        """The mean, once a state is there. Raises UserError where it is no finite f32."""
        mean_H = self._total_H / self.count
        if not (np.abs(mean_H) <= np.finfo(np.float32).max).all():
            raise UserError("the model makes an embedding with a number that is not finite: check its files")
        return tuple(mean_H.tolist())
