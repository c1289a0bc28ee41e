"""The LM head, on rank 0 only (TPI-LLM, section 3.1: the vocabulary stays on the user's machine)."""

import torch
from torch import Tensor

from tpiedge.kernels.linear import Linear
from tpiedge.kernels.norm import rms_norm
from tpiedge.memory.weights import Weights
from tpiedge.model.config import ModelConfig

__all__ = ["Head"]


class Head:
    """Final norm and the product with the vocabulary's rows, tile by tile."""

    def __init__(self, config: ModelConfig, weights: Weights, linear: Linear) -> None:
        self._config = config
        self._weights = weights
        self._linear = linear

    def logits(self, x_MH: Tensor) -> Tensor:
        """[M, vocabulary] f32 for M positions; the caller bounds M, since a row of logits may take half a megabyte."""
        weight = self._weights.head_vectors()["final_norm"]
        h_MH = rms_norm(x_MH, weight, self._config.rms_norm_eps, self._linear.pool)
        logits_MV = torch.empty(x_MH.shape[0], self._config.vocab_size)
        for first, tile_RH in self._weights.head_tiles():
            rows = min(tile_RH.shape[0], self._config.vocab_size - first)
            logits_MV[:, first : first + rows] = self._linear.project(h_MH, tile_RH)[:, :rows]
        return logits_MV
