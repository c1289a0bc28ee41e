import json
import math
from collections.abc import Iterator

import pytest
import torch

from tpiedge.errors import UserError
from tpiedge.lab.eval_agreement import Comparison, compare_window
from tpiedge.lab.eval_text import Window


def logits(*rows: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(rows).log() + 3.5


def test_comparison_of_known_probabilities_is_exact() -> None:
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


def test_nan_logits_are_refused() -> None:
    with pytest.raises(UserError, match="not numbers"):
        Comparison().add(logits((0.5, 0.5)), torch.tensor([[math.nan, 0.0]]), (0,))


def strict_json(found: Comparison) -> dict[str, object]:
    described = json.loads(json.dumps(found.described(), allow_nan=False))
    assert isinstance(described, dict)
    return described


def test_an_infinite_divergence_is_null() -> None:
    found = Comparison()
    found.add(logits((0.5, 0.5)), logits((0.5, 0.5)), (0,))
    found.add(logits((0.5, 0.5)), logits((1.0, 0.0)), (0,))
    described = strict_json(found)
    assert described["kl_nats"] == {"mean": None, "p95": None, "max": None}
    assert described["perplexity"] == pytest.approx(2**0.5)


@pytest.mark.parametrize("impossible", [1e4, math.inf])
@pytest.mark.parametrize("who", ["model", "reference"])
def test_overflowing_perplexity_is_null(impossible: float, who: str) -> None:
    good, bad = torch.tensor([[0.0, 0.0]]), torch.tensor([[-impossible, 0.0]])
    found = Comparison()
    found.add(*((good, bad) if who == "model" else (bad, good)), (0,))
    described = strict_json(found)
    other = {"model": "reference_perplexity", "reference": "perplexity"}[who]
    own = {"model": "perplexity", "reference": "reference_perplexity"}[who]
    assert (described[own], described[other]) == (None, pytest.approx(2))


def pieces(rows: torch.Tensor, sizes: tuple[int, ...], asked: list[int]) -> Iterator[torch.Tensor]:
    """Yields pieces in one buffer, as an engine does: the next piece overwrites the last."""
    buffer = torch.empty(max(sizes), rows.shape[1])
    for number, part in enumerate(rows.split(sizes)):
        asked.append(number)
        buffer[: len(part)] = part
        yield buffer[: len(part)]
        buffer.fill_(math.nan)


class Pieces:
    """An engine whose logits come in pieces of its own sizes."""

    def __init__(self, rows: torch.Tensor, sizes: tuple[int, ...]) -> None:
        self._rows, self._sizes = rows, sizes

    def logits(self, ids: tuple[int, ...]) -> Iterator[torch.Tensor]:
        assert len(ids) == len(self._rows)
        return pieces(self._rows, self._sizes, [])


@pytest.mark.parametrize("sizes", [(9,), (4, 5), (1, 3, 5)])
def test_window_comparison_does_not_depend_on_logit_chunks(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    reference, model = torch.randn(9, 12), torch.randn(9, 12)
    window = Window((3, 1, 4, 1, 5, 9, 2, 6, 5), first=3)
    found, expected = Comparison(), Comparison()
    compare_window([Pieces(reference, (2, 7)), Pieces(model, sizes)], window, found)  # type: ignore[list-item]
    expected.add(reference[2:8], model[2:8], window.ids[3:])
    assert found.positions == 6
    assert found.agreement == expected.agreement
    assert found.divergence() == pytest.approx(expected.divergence())
    assert found.perplexities() == pytest.approx(expected.perplexities())
