"""Agreement and divergence from known probabilities."""

import json
import math
from collections.abc import Iterator

import pytest
import torch

from tpiedge.errors import UserError
from tpiedge.lab.evaluation.agreement import Comparison, compare_window, same_positions
from tpiedge.lab.evaluation.text import Window


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


def strict_json(found: Comparison) -> dict[str, object]:
    """As a reader gets it who knows no Infinity."""
    described = json.loads(json.dumps(found.described(), allow_nan=False))
    assert isinstance(described, dict)
    return described


def test_an_infinite_divergence_is_null_with_a_notice() -> None:
    found = Comparison()
    found.add(logits((0.5, 0.5)), logits((0.5, 0.5)), (0,))
    assert strict_json(found)["notices"] == []
    found.add(logits((0.5, 0.5)), logits((1.0, 0.0)), (0,))
    described = strict_json(found)
    assert described["kl_nats"] == {"mean": None, "p95": None, "max": None}
    assert described["perplexity"] == pytest.approx(2**0.5)
    (notice,) = described["notices"]  # type: ignore[misc]
    assert notice.startswith("the model gives no probability to tokens that the reference expects")


@pytest.mark.parametrize("impossible", [1e4, math.inf])
@pytest.mark.parametrize("who", ["model", "reference"])
def test_a_perplexity_beyond_any_number_is_null_with_a_notice(impossible: float, who: str) -> None:
    good, bad = torch.tensor([[0.0, 0.0]]), torch.tensor([[-impossible, 0.0]])
    found = Comparison()
    found.add(*((good, bad) if who == "model" else (bad, good)), (0,))
    described = strict_json(found)
    other = {"model": "reference_perplexity", "reference": "perplexity"}[who]
    own = {"model": "perplexity", "reference": "reference_perplexity"}[who]
    assert (described[own], described[other]) == (None, pytest.approx(2))
    notices = described["notices"]
    assert isinstance(notices, list)
    assert notices[-1] == (
        f"the {who} gives the text {impossible:.4g} nats per token: no number is as large as the perplexity"
    )


def test_what_neither_expects_costs_nothing() -> None:
    """The reference's probability is too small for a number, the model's is none."""
    found = Comparison()
    found.add(torch.tensor([[0.0, -2000.0]]), torch.tensor([[0.0, -math.inf]]), (0,))
    assert found.divergence()["max"] == 0.0


def pieces(rows: torch.Tensor, sizes: tuple[int, ...], asked: list[int]) -> Iterator[torch.Tensor]:
    """In one buffer, as an engine gives them: a piece is gone once the next is asked for."""
    buffer = torch.empty(max(sizes), rows.shape[1])
    for number, part in enumerate(rows.split(sizes)):
        asked.append(number)
        buffer[: len(part)] = part
        yield buffer[: len(part)]
        buffer.fill_(math.nan)


@pytest.mark.parametrize(
    ("one", "other"),
    [((5, 5), (5, 5)), ((10,), (3, 3, 3, 1)), ((4, 6), (6, 4)), ((1, 9), (2, 2, 2, 2, 2))],
)
def test_rows_are_compared_position_by_position(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    rows = torch.arange(20.0).reshape(10, 2)
    asked: list[int] = []
    found = [
        (a.clone(), b.clone()) for a, b in same_positions(pieces(rows, one, []), pieces(-rows, other, asked))
    ]
    assert all(len(a) == len(b) for a, b in found)
    torch.testing.assert_close(torch.cat([a for a, _ in found]), rows)
    torch.testing.assert_close(torch.cat([b for _, b in found]), -rows)
    assert asked == list(range(len(other)))


class Pieces:
    """An engine whose logits come in pieces of its own sizes."""

    def __init__(self, rows: torch.Tensor, sizes: tuple[int, ...]) -> None:
        self._rows, self._sizes = rows, sizes

    def logits(self, ids: tuple[int, ...]) -> Iterator[torch.Tensor]:
        assert len(ids) == len(self._rows)
        return pieces(self._rows, self._sizes, [])


@pytest.mark.parametrize("sizes", [(9,), (4, 5), (1, 3, 5)])
def test_a_window_is_compared_the_same_however_models_cut_it(sizes: tuple[int, ...]) -> None:
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


@pytest.mark.parametrize(("one", "other"), [((4, 6), (4, 5)), ((4,), (4, 1)), ((4, 3), (7, 1))])
def test_positions_that_one_lacks_are_an_error(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    sides = [pieces(torch.zeros(sum(sizes), 2), sizes, []) for sizes in (one, other)]
    with pytest.raises(ValueError, match="more positions than the other"):
        list(same_positions(*sides))
