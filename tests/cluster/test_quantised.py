"""q8 and q4 through the engine: how near they are to the checkpoint, and that no cut of a prompt changes a bit.
(test_bits.py: all splits have the same bits.)"""

from collections.abc import Callable

import pytest
import torch

from tests.cluster.alone import TOKENS, Alone
from tests.cluster.packs import split
from tests.reference import Reference
from tpiedge.engine.steps import StepLimits
from tpiedge.kernels.dispatch import NATIVE_TOKENS
from tpiedge.pack.layout import Precision
from tpiedge.testing.cluster import InProcessCluster

# Of a head of 12 or 20 and FFN tiles of 44 or 64: groups that are short; a KV head for all; biases; ties; norms of q
# and k; sliding windows.
NAMES = [
    "llama-gqa-odd",
    "openllama",
    "llama-mqa-tied",
    "llama-biases",
    "qwen2-tied",
    "qwen3",
    "mistral-sliding",
]
QUANTISED = [Precision.Q8, Precision.Q4]


@pytest.mark.parametrize("name", NAMES)
def test_quantised_weights_are_near_the_checkpoint_s(
    name: str, references: Callable[[str], Reference], alone: Callable[..., Alone]
) -> None:
    """The engine computes the model, and q8 is nearer to it than q4. Random weights suffer more than trained ones."""
    reference = references(name)
    expected_TV = torch.from_numpy(reference.logits_TV)
    errors = [
        float((found_TV[: len(expected_TV)] - expected_TV).norm() / expected_TV.norm())
        for found_TV in (alone(name, precision).logits_TV for precision in QUANTISED)
    ]
    assert errors[0] < 0.1
    assert 2 * errors[0] < errors[1] < 0.7


def test_an_answer_token_by_token(
    references: Callable[[str], Reference], alone: Callable[..., Alone]
) -> None:
    """Decode agrees with prefill."""
    expected = alone("llama-gqa-odd", Precision.Q8)
    reference = references("llama-gqa-odd")
    for shares in ("1", "3,1", "1,0:1,1"):
        with InProcessCluster(expected.pack, split(reference, shares)) as cluster:
            assert tuple(cluster.greedy(reference.prompt_ids, TOKENS)) == expected.answer


@pytest.mark.parametrize("shares", ["1", "2,1"])
@pytest.mark.parametrize("precision", QUANTISED)
@pytest.mark.parametrize("name", ["llama-gqa-odd", "llama-biases", "qwen2-tied", "qwen3"])
def test_bits_do_not_depend_on_how_a_prompt_is_cut(
    name: str,
    precision: Precision,
    shares: str,
    references: Callable[[str], Reference],
    alone: Callable[..., Alone],
) -> None:
    """One token at a time, seven, or all at once, which is more than f32 products take natively."""
    expected, parts = alone(name, precision), split(references(name), shares)
    assert len(expected.text) > 2 * NATIVE_TOKENS
    seen: list[torch.Tensor] = []
    for limits in (StepLimits(1, 1), StepLimits(7, 7), StepLimits(100, 7), StepLimits(100, 100)):
        with InProcessCluster(expected.pack, parts, limits=limits) as cluster:
            seen.append(last_logits(cluster, expected.text))
    assert all(torch.equal(seen[0], other) for other in seen)


def last_logits(cluster: InProcessCluster, prompt: tuple[int, ...]) -> torch.Tensor:
    """[vocabulary] at the end of a prompt that is prefilled in steps of the cluster's limits."""
    seen: list[torch.Tensor] = []
    head = cluster.leader._head
    original = head.logits

    def logits(x_MH: torch.Tensor, *, apart: bool, room: torch.Tensor) -> torch.Tensor:
        seen.append(original(x_MH, apart=apart, room=room).clone())
        return seen[-1]

    head.logits = logits  # type: ignore[method-assign]
    cluster.greedy(prompt, 1)
    return seen[-1][-1]
