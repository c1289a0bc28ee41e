"""Agreement and divergence from known probabilities."""

import math

import pytest
import torch

from tpiedge.cli.eval_comparison import Comparison
from tpiedge.errors import UserError


def logits(*rows: tuple[float, ...]) -> torch.Tensor:
    """Of these probabilities, shifted as logits may be."""
    return torch.tensor(rows).log() + 3.5


def test_a_model_agrees_with_itself() -> None:
    torch.manual_seed(1)
    rows = 40 * torch.randn(50, 300)
    found = Comparison()
    found.add(rows[:30], rows[:30].clone(), range(30))
    found.add(rows[30:], rows[30:].clone(), range(20))
    assert (found.positions, found.agreement) == (50, 1.0)
    assert found.divergence() == {"mean": 0.0, "p95": 0.0, "max": 0.0}


def test_known_probabilities() -> None:
    found = Comparison()
    reference = logits((0.5, 0.25, 0.25), (0.2, 0.7, 0.1))
    model = logits((0.25, 0.5, 0.25), (0.2, 0.7, 0.1))
    found.add(reference, model, (0, 2))
    described = found.described()
    assert (described["positions"], described["top1_agreement"]) == (2, 0.5)
    assert described["kl_nats"] == pytest.approx(
        {"mean": 0.125 * math.log(2), "p95": 0.25 * math.log(2), "max": 0.25 * math.log(2)}, rel=1e-6
    )
    assert described["reference_perplexity"] == pytest.approx((0.5 * 0.1) ** -0.5)
    assert described["perplexity"] == pytest.approx((0.25 * 0.1) ** -0.5)


def test_the_divergence_has_a_direction() -> None:
    forth, back = Comparison(), Comparison()
    a, b = logits((0.9, 0.1)), logits((0.5, 0.5))
    forth.add(a, b, (0,))
    back.add(b, a, (0,))
    assert forth.divergence()["max"] == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2))
    assert back.divergence()["max"] == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(5))


def test_a_percentile_is_a_value() -> None:
    found = Comparison()
    for place in range(100):
        probability = 0.5 + place / 1000
        found.add(logits((0.5, 0.5)), logits((probability, 1 - probability)), (0,))
    divergence = found.divergence()
    at_94 = -0.5 * math.log(4 * 0.594 * 0.406)
    assert divergence["p95"] == pytest.approx(at_94, rel=1e-4)
    assert divergence["max"] > divergence["p95"] > divergence["mean"]


def test_impossible_tokens_of_the_reference_cost_nothing() -> None:
    found = Comparison()
    found.add(logits((1.0, 0.0)), logits((0.5, 0.5)), (0,))
    assert found.divergence()["max"] == pytest.approx(math.log(2))


def test_what_is_no_number() -> None:
    with pytest.raises(UserError, match="not numbers"):
        Comparison().add(logits((0.5, 0.5)), torch.tensor([[math.nan, 0.0]]), (0,))
