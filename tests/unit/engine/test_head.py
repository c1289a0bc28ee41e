"""Scores of a text: as the softmax of all logits says, with one pass over the head's tiles."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from tpiedge.engine.head import Head
from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.linear import Linear
from tpiedge.memory.weights import Weights
from tpiedge.model.config import ModelConfig

VOCABULARY, HIDDEN, TILE = 150, 32, 64


class Tiles:
    """A head of three tiles, which counts how often it is gone through."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.passes = 0
        self.weight = torch.randn(VOCABULARY, HIDDEN)

    def head_tiles(self) -> Iterator[tuple[int, torch.Tensor]]:
        self.passes += 1
        return ((first, self.weight[first : first + TILE]) for first in range(0, VOCABULARY, TILE))

    def head_vectors(self) -> Mapping[str, torch.Tensor]:
        return {"final_norm": torch.linspace(0.5, 2, HIDDEN)}


@pytest.mark.parametrize("positions", [1, 64, 200])
def test_the_scores_of_a_text(positions: int) -> None:
    tiles = Tiles()
    config = cast(ModelConfig, SimpleNamespace(vocab_size=VOCABULARY, rms_norm_eps=1e-5))
    head = Head(config, cast(Weights, tiles), Linear(Arithmetic.F32, 1, None))
    x_MH, ids_M = torch.randn(positions, HIDDEN), torch.randint(VOCABULARY, (positions,))
    ids_M[0] = VOCABULARY - 1
    found_M = head.scores(x_MH, ids_M)
    assert tiles.passes == 1
    logits_MV = head.logits(x_MH).double()
    expected_M = torch.log_softmax(logits_MV, dim=-1).gather(1, ids_M[:, None])[:, 0]
    torch.testing.assert_close(found_M.double(), expected_M, rtol=1e-6, atol=1e-5)
