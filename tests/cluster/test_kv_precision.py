"""Quantised keys and values through the engine: near f32's, the same for every split, whatever shares a step.

The references' random weights make attention sharp and logits close to each other, which quantised keys do not forgive:
the bounds are for them. How much a trained model suffers is measured by `tpiedge eval`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.cluster.packs import split
from tests.reference import Reference
from tpiedge.engine.steps import StepLimits
from tpiedge.kernels.dispatch import NATIVE_TOKENS
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.pack.layout import Precision
from tpiedge.testing.cluster import InProcessCluster
from tpiedge.wire.fields import KVPrecision

# Bound of any logit's error by 8 bits, as a part of the largest logit of its row (seen: 0.011 to 0.041).
Q8_ERROR = 0.06
# Between two splits: sums in another order carry some numbers over the edge between two codes (seen: 0.003).
SPLIT_ERROR = 0.02
# Biases; one KV head for seven query heads; sliding windows; norms of q and k.
NAMES = ["llama-biases", "yi", "mistral-sliding", "qwen2-tied", "qwen3"]
SPLITS = ["1", "1,1", "1,5,2"]

Logits = Callable[..., torch.Tensor]


@pytest.fixture(scope="module")
def logits(references: Callable[[str], Reference], packs: Callable[..., Path]) -> Logits:
    """[T, vocabulary] at every position of prompt and answer."""
    known: dict[tuple[str, str, str], torch.Tensor] = {}

    def find(name: str, kv: KVPrecision, shares: str) -> torch.Tensor:
        if (name, kv, shares) not in known:
            reference = references(name)
            with InProcessCluster(packs(reference), split(reference, shares), kv=kv) as cluster:
                known[name, kv, shares] = cluster.logits((*reference.prompt_ids, *reference.greedy_ids))
        return known[name, kv, shares]

    return find


def assert_near(actual_TV: torch.Tensor, expected_TV: torch.Tensor, bound: float) -> None:
    """Every row within `bound` of its largest logit; and the likeliest token the same wherever that decides it."""
    largest_T = expected_TV.abs().amax(-1)
    error_T = (actual_TV - expected_TV).abs().amax(-1) / largest_T
    assert error_T.max() < bound
    best_T2 = expected_TV.topk(2).values
    decided_T = best_T2[:, 0] - best_T2[:, 1] > 2 * bound * largest_T
    assert decided_T.sum() >= 5
    assert torch.equal(actual_TV.argmax(-1)[decided_T], expected_TV.argmax(-1)[decided_T])


@pytest.mark.parametrize("shares", SPLITS)
@pytest.mark.parametrize("name", NAMES)
def test_q8_is_near_f32(name: str, shares: str, logits: Logits) -> None:
    assert_near(logits(name, "q8", shares), logits(name, "f32", shares), Q8_ERROR)


@pytest.mark.parametrize("name", NAMES)
def test_the_fewer_bits_the_larger_the_error(name: str, logits: Logits) -> None:
    exact_TV = logits(name, "f32", "1")
    errors = [float((logits(name, kv, "1") - exact_TV).norm() / exact_TV.norm()) for kv in ("q8", "q4")]
    assert 0 < errors[0] < errors[1] / 4 < 0.25


@pytest.mark.parametrize("kv", ["q8", "q4"])
@pytest.mark.parametrize("name", NAMES)
def test_every_split_agrees_with_one_node(name: str, kv: KVPrecision, logits: Logits) -> None:
    for shares in SPLITS[1:]:
        assert_near(logits(name, kv, shares), logits(name, kv, "1"), SPLIT_ERROR)


@pytest.mark.skipif(
    kernel_library() is None, reason="native: torch's bits depend on how many tokens share a step"
)
@pytest.mark.parametrize("kv", ["f32", "bf16", "q8", "q4"])
@pytest.mark.parametrize("precision", [Precision.F32, Precision.Q8])
def test_steps_and_chunks_change_no_bit(
    precision: Precision,
    kv: KVPrecision,
    references: Callable[[str], Reference],
    packs: Callable[..., Path],
) -> None:
    """Up to as many tokens as the native kernels take of every operation: attention itself takes any number."""
    reference = references("llama-gqa-odd")
    text = [*reference.prompt_ids, *reference.greedy_ids]
    found = []
    for limits in (StepLimits(1, 1), StepLimits(5, 2), StepLimits(NATIVE_TOKENS, NATIVE_TOKENS)):
        with InProcessCluster(
            packs(reference, precision), split(reference, "2,1"), limits=limits, kv=kv
        ) as one:
            found.append(one.logits(text))
    assert all(torch.equal(one, found[0]) for one in found)
