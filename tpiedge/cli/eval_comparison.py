"""Two models' logits at the same positions, and what comes of them. Sums are in f64.

R positions, V the vocabulary.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tpiedge.errors import UserError

__all__ = ["Comparison"]


class Comparison:
    """Grows by `add`; only a number or two of each position are kept."""

    def __init__(self) -> None:
        self.positions = 0
        self._agreeing = 0
        self._nats = [0.0, 0.0]  # of the text, for the reference and for the model
        self._divergences: list[Tensor] = []

    def add(self, reference_RV: Tensor, model_RV: Tensor, following: Sequence[int]) -> None:
        """Logits of R positions, and the token that follows each. Raises UserError for NaN."""
        logs_RV = reference_RV.double().log_softmax(-1), model_RV.double().log_softmax(-1)
        ids_R1 = torch.tensor(following)[:, None]
        for place, log_RV in enumerate(logs_RV):
            self._nats[place] -= float(log_RV.gather(1, ids_R1).sum())
        reference, model = logs_RV
        # Where the reference has no probability, nothing is lost: 0 log 0 = 0.
        terms_RV = torch.where(reference == -torch.inf, 0.0, reference.exp() * (reference - model))
        divergence_R = terms_RV.sum(-1).clamp(min=0.0)  # rounding may leave it below
        if divergence_R.isnan().any():
            raise UserError("a model's logits are not numbers: check its files")
        self._divergences.append(divergence_R)
        self._agreeing += int((reference_RV.argmax(-1) == model_RV.argmax(-1)).sum())
        self.positions += len(following)

    @property
    def agreement(self) -> float:
        """Of all positions, the part whose likeliest token is the same."""
        return self._agreeing / self.positions

    def divergence(self) -> dict[str, float]:
        """KL(reference || model) in nats, over the positions."""
        every = torch.cat(self._divergences)
        # Not torch's quantile, which takes 16 million numbers at most.
        place = max(0, math.ceil(0.95 * len(every)) - 1)
        return {
            "mean": float(every.mean()),
            "p95": float(every.sort().values[place]),
            "max": float(every.max()),
        }

    def described(self) -> dict[str, object]:
        """For JSON."""
        reference, model = (math.exp(nats / self.positions) for nats in self._nats)
        return {
            "positions": self.positions,
            "top1_agreement": self.agreement,
            "kl_nats": self.divergence(),
            "perplexity": model,
            "reference_perplexity": reference,
        }
