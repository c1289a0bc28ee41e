import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.engine.drawing import MeanState
from tpiedge.errors import UserError

WIDTH = 5


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any), st.integers(0, 99))
def test_the_mean_has_the_same_bits_however_the_states_come(pieces: list[int], seed: int) -> None:
    states_TH = torch.randn(sum(pieces), WIDTH, generator=torch.Generator().manual_seed(seed))
    whole, cut = MeanState(WIDTH), MeanState(WIDTH)
    whole.add(states_TH)
    for part_MH in states_TH.split(pieces):
        cut.add(part_MH)
    assert cut.values == whole.values
    assert cut.count == len(states_TH)
    assert np.allclose(whole.values, states_TH.double().mean(0), atol=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(bad: float) -> None:
    mean = MeanState(WIDTH)
    mean.add(torch.tensor([[0.0, 1.0, bad, 2.0, 3.0]]))
    with pytest.raises(UserError, match="not finite"):
        assert mean.values
