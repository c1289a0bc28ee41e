"""q8 and q4 through the engine: nodes without native kernels, in any split, compute what those with them compute, up to
what 8 bits of activations decide. (test_bits.py: with native kernels all splits have the same bits.)

Where torch's sums differ from theirs in the last bits of f32, an activation at the edge between two of its 255
steps may fall to the other side. From then on the two runs round differently; that is the whole difference.

The bound. A product's inputs are rounded by at most half a step of amax / 127 in every group of 32. With the root
mean square of a group as a unit amax is at most sqrt(32), so the error, spread evenly over a step, is at most
r = sqrt(32) / (127 sqrt(12)) of the inputs' length. A layer rounds the inputs of four products (q k v; o; gate, up;
down), the head those of one; the errors have nothing to do with each other, nor with those of the other run. So both
runs are sqrt(2 (4 L + 1)) r apart, as a part of the length of a row of logits. A single logit may be three times as
far off as their root mean square, but the largest one, which the bound is a part of, is three times that as well.
"""

import math
from collections.abc import Callable

import pytest
import torch

from tests.cluster.alone import TOKENS, Alone
from tests.cluster.packs import split
from tests.reference import Reference
from tpiedge.engine.steps import StepLimits
from tpiedge.kernels import linear as kernels_linear
from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.dispatch import NATIVE_TOKENS
from tpiedge.kernels.linear import Linear
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
SPLITS = ["1,1", "3,1", "1,0:1", "1,5,2", "1:0,0:1,2", "1,1,1,1,1", "1,0:3,1,0:1,1"]
QUANTISED = [Precision.Q8, Precision.Q4]


def bound(layers: int) -> float:
    """A bound of any logit's error, as a part of the largest logit of its row."""
    return math.sqrt(2 * (4 * layers + 1)) * math.sqrt(32) / (127 * math.sqrt(12))


def decided_T(expected: Alone) -> torch.Tensor:
    """Where the best two are so far apart that no split may choose another token."""
    best_T2 = expected.logits_TV.topk(2).values
    return best_T2[:, 0] - best_T2[:, 1] > 2 * bound(expected.layers) * expected.logits_TV.abs().amax(-1)


def assert_agrees(logits_TV: torch.Tensor, expected: Alone) -> None:
    error_T = (logits_TV - expected.logits_TV).abs().amax(-1) / expected.logits_TV.abs().amax(-1)
    assert error_T.max() < bound(expected.layers)
    sure_T = decided_T(expected)
    assert sure_T.sum() >= 2
    assert torch.equal(logits_TV.argmax(-1)[sure_T], expected.logits_TV.argmax(-1)[sure_T])


@pytest.fixture
def _torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are made from now on have no native kernels."""
    monkeypatch.setattr(kernels_linear, "kernel_library", lambda: None)
    assert not Linear.create(Arithmetic.INT8, 1).native


@pytest.mark.parametrize("shares", SPLITS)
@pytest.mark.parametrize("precision", QUANTISED)
@pytest.mark.parametrize("name", NAMES)
def test_every_split_agrees_without_native_kernels(
    name: str,
    precision: Precision,
    shares: str,
    references: Callable[[str], Reference],
    alone: Callable[..., Alone],
    request: pytest.FixtureRequest,
) -> None:
    expected = alone(name, precision)
    request.getfixturevalue("_torch_alone")
    with InProcessCluster(expected.pack, split(references(name), shares)) as cluster:
        assert_agrees(cluster.logits(expected.text), expected)


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
    """Decode agrees with prefill, as far as the tokens are decided."""
    expected = alone("llama-gqa-odd", Precision.Q8)
    reference = references("llama-gqa-odd")
    decided = decided_T(expected)[len(reference.prompt_ids) - 1 : -1].tolist()
    sure = decided.index(False) if False in decided else len(decided)
    for shares in ("1", "3,1", "1,0:1,1"):
        with InProcessCluster(expected.pack, split(reference, shares)) as cluster:
            tokens = cluster.greedy(reference.prompt_ids, TOKENS)
        assert tuple(tokens[:sure]) == expected.answer[:sure]


@pytest.fixture(scope="session")
def _native() -> None:
    with Linear.create(Arithmetic.INT8, 1) as linear:
        if not linear.native:
            pytest.skip("native: without its kernels a row's bits depend on the number of tokens")


@pytest.mark.usefixtures("_native")
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


def test_the_bound_would_see_what_is_wrong(alone: Callable[..., Alone]) -> None:
    """Noise of a third of the logits' own size, a vocabulary that is off by one."""
    expected = alone("openllama", Precision.Q4)
    right_TV = expected.logits_TV
    noise_TV = torch.randn(right_TV.shape, generator=torch.Generator().manual_seed(0))
    for wrong_TV in (right_TV + 0.3 * right_TV.std() * noise_TV, right_TV.roll(1, -1)):
        with pytest.raises(AssertionError):
            assert_agrees(wrong_TV, expected)
