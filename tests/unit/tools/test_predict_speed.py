"""Predictions for shapes of which no weight is stored."""

import re

from tools.predict_speed import facts_of, predicted
from tpiedge.pack.specs import Precision
from tpiedge.planner.prediction import MachineFacts
from tpiedge.wire.fields import Keeping


def machines(count: int, memory_bytes: int | None = None) -> list[MachineFacts]:
    return [MachineFacts(10e9, memory_bytes, keeping=Keeping(pin="all"), round_trip_s=0.001)] * count


def test_memory_holds_all_experts_and_time_counts_those_of_a_token() -> None:
    facts = facts_of("qwen3-30b-a3b", Precision.Q4)
    found = re.fullmatch(
        r"([\d.]+) tokens/s \(layers ([\d.]+) ms, head ([\d.]+) ms, .*\), at most ([\d.]+) GB each",
        predicted(facts, machines(1)),
    )
    assert found is not None
    rate, layers, head, memory = map(float, found.groups())
    assert 17 < memory < 19
    assert 120 < layers < 170  # a token needs 1.5 GB of the layers
    assert abs(rate - 1000 / (layers + head)) < 0.1


def test_more_machines_wait_for_two_sums_in_a_layer() -> None:
    facts = facts_of("tinyllama", Precision.Q4)
    assert "all-reduces 44.0 ms" in predicted(facts, machines(3))  # 22 layers


def test_machines_with_too_little_memory_are_told_what_they_need() -> None:
    facts = facts_of("qwen3-30b-a3b", Precision.Q4)
    told = predicted(facts, machines(2, 4_000_000_000))
    assert re.search(r"the layers need 16\.8 GB .* machine 2 takes 3\.\d GB: 10\.\d GB too little", told)
