from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.engine.drawing import Head, MeanState
from tpiedge.errors import UserError
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight
from tpiedge.kernels.panels import FORMATS, PanelShape
from tpiedge.kernels.quantise import quantise_unit
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.memory.weights import NodeWeights
from tpiedge.model.config import ModelConfig
from tpiedge.model.families.family import Factors

VOCABULARY, HIDDEN, TILE = 150, 32, 64
LIKELIEST = 30  # more than the rows of the last tile


class Tiles:
    """A head of three tiles, which counts how often it is gone through; quantised where `bits` are given."""

    def __init__(self, bits: int | None = None) -> None:
        torch.manual_seed(3)
        self.passes = 0
        self.head: PanelMatrix | None = None
        self.bits = bits
        self.weight = torch.randn(VOCABULARY, HIDDEN)

    def head_tiles(self) -> Iterator[tuple[int, Weight]]:
        self.passes += 1
        return ((first, self.tile(first)) for first in range(0, VOCABULARY, TILE))

    def tile(self, first: int) -> Weight:
        rows = self.weight[first : first + TILE]
        if self.bits is None:
            return rows
        shape = PanelShape(FORMATS[f"q{self.bits}"], *rows.shape)
        data, _ = quantise_unit(rows.numpy(), shape)
        return PanelMatrix(
            torch.from_numpy(data), FORMATS[f"q{self.bits}"], *rows.shape, TILE, shape.nbytes, False
        )

    def join(self) -> None:
        parts = [part for _, part in self.head_tiles() if isinstance(part, PanelMatrix)]
        joined_B = torch.cat([part.data_B for part in parts])
        self.head = replace(parts[0], data_B=joined_B, rows=VOCABULARY)
        self.passes = 0

    @property
    def vectors(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        return {"head": {"final_norm": torch.linspace(0.5, 2, HIDDEN)}}


@pytest.fixture
def linear(bits: int | None) -> Iterator[Linear]:
    with Linear(Arithmetic.F32, 1, kernel_library() if bits else None) as made:
        yield made


@pytest.mark.parametrize("positions", [1, 64, 200])
@pytest.mark.parametrize("bits", [None, 8, 4])
def test_prompt_scores_match_the_log_softmax(positions: int, bits: int | None, linear: Linear) -> None:
    tiles = Tiles(bits)
    config = cast(ModelConfig, SimpleNamespace(vocab_size=VOCABULARY, rms_norm_eps=1e-5, factors=Factors()))
    head = Head(config, cast(NodeWeights, tiles), linear)
    x_MH, ids_M = torch.randn(positions, HIDDEN), torch.randint(VOCABULARY, (positions,))
    ids_M[0] = VOCABULARY - 1
    scores, best = head.scores(x_MH, ids_M, LIKELIEST)
    assert tiles.passes == 1
    found_M = torch.tensor(scores)
    logits_MV = head.logits(x_MH).double()
    expected_M = torch.log_softmax(logits_MV, dim=-1).gather(1, ids_M[:, None])[:, 0]
    torch.testing.assert_close(found_M.double(), expected_M, rtol=1e-6, atol=1e-5)
    for pairs, logits_V in zip(best, logits_MV, strict=True):
        most = torch.log_softmax(logits_V, dim=-1).topk(LIKELIEST)
        assert [score for _, score in pairs] == pytest.approx(most.values.tolist(), rel=1e-6, abs=1e-5)
        assert {token for token, _ in pairs} == set(most.indices.tolist())
    assert head.scores(x_MH, ids_M) == (scores, [()] * positions)


@pytest.mark.parametrize("factors", [Factors(), Factors(logit_cap=3.0, logit_divisor=2.0)])
@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("bits", [8, 4])
def test_whole_head_gives_the_bits_of_its_tiles(bits: int, rows: int, factors: Factors) -> None:
    tiles, x_MH = Tiles(bits), torch.randn(rows, HIDDEN)
    config = cast(ModelConfig, SimpleNamespace(vocab_size=VOCABULARY, rms_norm_eps=1e-5, factors=factors))
    with Linear(Arithmetic.INT8, 2, kernel_library()) as linear:
        head = Head(config, cast(NodeWeights, tiles), linear)
        expected_MV = head.logits(x_MH)
        if factors.logit_cap:
            assert expected_MV.abs().max() < factors.logit_cap
        tiles.join()
        assert torch.equal(head.logits(x_MH), expected_MV)
        assert tiles.passes == 0
        assert torch.equal(head.logits(x_MH, apart=True), expected_MV)
        assert tiles.passes == 1


WIDTH = 5


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any), st.integers(0, 99))
def test_mean_state_bits_do_not_depend_on_chunks(pieces: list[int], seed: int) -> None:
    states_TH = torch.randn(sum(pieces), WIDTH, generator=torch.Generator().manual_seed(seed))
    whole, cut = MeanState(WIDTH), MeanState(WIDTH)
    whole.add(states_TH)
    for part_MH in states_TH.split(pieces):
        cut.add(part_MH)
    assert cut.values == whole.values
    assert cut.count == len(states_TH)
    assert np.allclose(whole.values, states_TH.double().mean(0), atol=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_mean_state_is_refused(bad: float) -> None:
    mean = MeanState(WIDTH)
    mean.add(torch.tensor([[0.0, 1.0, bad, 2.0, 3.0]]))
    with pytest.raises(UserError, match="not finite"):
        assert mean.values
