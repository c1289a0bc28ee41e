"""Two models' logits at the same positions, and what comes of them. Sums are in f64.

R positions, V the vocabulary.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tpiedge.errors import UserError


def same_positions(one: Iterator[Tensor], other: Iterator[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of both, position by position: models of different widths come in other pieces.

    Each piece is asked for once the one before it is used up. Raises ValueError where one has more rows in all.
    """
    a_RV, b_RV = next(one, None), next(other, None)
    while a_RV is not None and b_RV is not None:
        rows = min(len(a_RV), len(b_RV))
        yield a_RV[:rows], b_RV[:rows]
        a_RV = a_RV[rows:] if rows < len(a_RV) else next(one, None)
        b_RV = b_RV[rows:] if rows < len(b_RV) else next(other, None)
    if a_RV is not None or b_RV is not None:
        raise ValueError("one model has more positions than the other")


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
        # Where the reference has no probability, or one too small for a number, nothing is lost: 0 log 0 = 0.
        expected_RV = reference.exp()
        terms_RV = torch.where(expected_RV == 0, 0.0, expected_RV * (reference - model))
        divergence_R = terms_RV.sum(-1).clamp(min=0.0)  # rounding may leave it below
        if divergence_R.isnan().any():
            raise UserError("a model's logits are not numbers: check its files")
        self._divergences.append(divergence_R)
        self._agreeing += int((reference_RV.argmax(-1) == model_RV.argmax(-1)).sum())
        self.positions += len(following)

    @property
    def agreement(self) -> float:
        """The part of all positions whose likeliest token is the same."""
        return self._agreeing / self.positions

    def divergence(self) -> dict[str, float | None]:
        """KL(reference || model) in nats, over the positions; None where it is infinite."""
        every = torch.cat(self._divergences)
        # Not torch's quantile, which takes 16 million numbers at most.
        place = max(0, math.ceil(0.95 * len(every)) - 1)
        return {
            "mean": _finite(float(every.mean())),
            "p95": _finite(float(every.sort().values[place])),
            "max": _finite(float(every.max())),
        }

    def perplexities(self) -> tuple[float | None, float | None]:
        """(the model's, the reference's); None where no number is as large."""
        reference, model = (_exp(nats / self.positions) for nats in self._nats)
        return model, reference

    def notices(self) -> list[str]:
        """Why figures are None."""
        notices = []
        if self.divergence()["max"] is None:
            notices.append(
                "the model gives no probability to tokens that the reference expects: an infinite divergence"
            )
        for who, nats, found in zip(
            ("model", "reference"), self._nats[::-1], self.perplexities(), strict=True
        ):
            if found is None:
                notices.append(
                    f"the {who} gives the text {nats / self.positions:.4g} nats per token: no number is as large as "
                    "the perplexity"
                )
        return notices

    def described(self) -> dict[str, object]:
        """The figures for JSON, which has no infinities."""
        model, reference = self.perplexities()
        return {
            "positions": self.positions,
            "top1_agreement": self.agreement,
            "kl_nats": self.divergence(),
            "perplexity": model,
            "reference_perplexity": reference,
            "notices": self.notices(),
        }


def _exp(nats: float) -> float | None:
    try:
        return _finite(math.exp(nats))
    except OverflowError:
        return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
