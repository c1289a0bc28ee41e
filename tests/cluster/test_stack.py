"""A node that is alone computes a token's layers as one call: with the bits of one block after the other."""

from collections.abc import Sequence

import pytest
import torch

from tests.cluster.packs import Packs, References, split
from tests.fakes.cluster import InProcessCluster
from tpiedge.engine.forward import Engine
from tpiedge.kernels.attention_block import FusedLayers
from tpiedge.kernels.elementwise import Rotation
from tpiedge.kernels.kv_pages import Spans
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.pack.specs import Precision

TOKENS = 12

pytestmark = pytest.mark.skipif(kernel_library() is None, reason="native: the kernels are not built")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    run = FusedLayers.run

    def counted(
        call: FusedLayers,
        x_TH: torch.Tensor,
        spans: Spans,
        rotations: Sequence[Rotation],
        inputs_TC: torch.Tensor | None,
    ) -> tuple[float, float]:
        seen.append(len(x_TH))
        return run(call, x_TH, spans, rotations, inputs_TC)

    monkeypatch.setattr(FusedLayers, "run", counted)
    return seen


@pytest.mark.parametrize("precision", [Precision.Q8, Precision.Q4])
@pytest.mark.parametrize(
    "name",
    [
        *(
            "llama-gqa-odd",
            "llama-biases",
            "qwen3",
            "mistral-sliding",
            "gemma2",
            "gemma3-capped",
            "granite",
            "ministral3",
        ),
        *("smollm3-sliding", "phi4-mini-short", "olmo3", "qwen3-moe", "olmoe", "gpt-oss", "gemma4-a4b"),
    ],
)
def test_one_call_for_all_layers_matches_block_by_block(
    name: str,
    precision: Precision,
    runs: list[int],
    references: References,
    packs: Packs,
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
    monkeypatch.setattr(Engine, "_layers", None)
    with InProcessCluster(pack, split(reference, "1")) as cluster:
        assert cluster.greedy(reference.prompt_ids, TOKENS) == answer
        assert torch.equal(cluster.logits(text), logits_TV)
    assert len(runs) == calls
