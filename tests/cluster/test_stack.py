"""A node that is alone computes a token's layers as one call: with the bits of one block after the other."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.cluster.packs import split
from tests.cluster.test_cancel import true_from
from tests.cluster.test_growing_kv import tight
from tests.reference import Reference
from tpiedge.engine.fused_blocks import FusedBlocks
from tpiedge.kernels.kv_pages import Spans
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.kernels.stack import FusedLayers
from tpiedge.pack.layout import Precision
from tpiedge.testing.cluster import InProcessCluster, greedy_request

TOKENS = 12

pytestmark = pytest.mark.skipif(kernel_library() is None, reason="native: the kernels are not built")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of every call."""
    seen: list[int] = []
    run = FusedLayers.run

    def counted(
        call: FusedLayers, x_TH: torch.Tensor, spans: Spans, cos_Tr: torch.Tensor, sin_Tr: torch.Tensor
    ) -> tuple[float, float]:
        seen.append(len(x_TH))
        return run(call, x_TH, spans, cos_Tr, sin_Tr)

    monkeypatch.setattr(FusedLayers, "run", counted)
    return seen


@pytest.mark.parametrize("precision", [Precision.Q8, Precision.Q4])
@pytest.mark.parametrize("name", ["llama-gqa-odd", "qwen3", "mistral-sliding"])
def test_the_same_answer_as_block_by_block(
    name: str,
    precision: Precision,
    runs: list[int],
    references: Callable[[str], Reference],
    packs: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference = references(name)
    pack = packs(reference, precision)
    with InProcessCluster(pack, split(reference, "1")) as cluster:
        answer = cluster.greedy(reference.prompt_ids, TOKENS)
        assert runs == [1] * (TOKENS - 1)
        text = (*reference.prompt_ids, *answer)[:10]
        logits_TV = cluster.logits(text)
        assert runs[-1] == len(text)
    calls = len(runs)
    monkeypatch.setattr(FusedBlocks, "stack", lambda *_: None)
    with InProcessCluster(pack, split(reference, "1")) as cluster:
        assert cluster.greedy(reference.prompt_ids, TOKENS) == answer
        assert torch.equal(cluster.logits(text), logits_TV)
    assert len(runs) == calls


def test_not_where_there_is_none(
    runs: list[int], references: Callable[[str], Reference], packs: Callable[..., Path]
) -> None:
    """Several nodes, weights that are streamed, biases, and weights that are not quantised."""
    reference = references("llama-gqa-odd")
    pack = packs(reference, Precision.Q4)
    for shares, placement in (("1,1", None), ("1", tight(0.5))):
        with InProcessCluster(pack, split(reference, shares), placement=placement) as cluster:
            assert len(cluster.greedy(reference.prompt_ids, 3)) == 3
    for name, precision in (("llama-biases", Precision.Q4), ("llama-gqa-odd", None)):
        reference = references(name)
        with InProcessCluster(packs(reference, precision), split(reference, "1")) as cluster:
            assert len(cluster.greedy(reference.prompt_ids, 3)) == 3
    assert runs == []


@pytest.mark.parametrize("call", [3, 4, 5, 6])
def test_a_cancel_leaves_a_node_that_answers_exactly(
    call: int, runs: list[int], references: Callable[[str], Reference], packs: Callable[..., Path]
) -> None:
    reference = references("qwen3")
    with InProcessCluster(packs(reference, Precision.Q8), split(reference, "1")) as cluster:
        whole = cluster.greedy(reference.prompt_ids, TOKENS)
        request = greedy_request(reference.prompt_ids, TOKENS)
        finished = cluster.leader.generate(request, lambda _: None, true_from(call))
        assert finished.reason == "cancel"
        assert finished.tokens < TOKENS
        assert cluster.greedy(reference.prompt_ids, TOKENS) == whole
    assert runs
