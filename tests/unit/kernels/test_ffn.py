import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.engine.steps import StepLimits
from tpiedge.kernels.ffn import NORMED_BYTES, SCRATCH_BYTES, mini_sequences
from tpiedge.kernels.linear import Arithmetic


@given(st.integers(0, 5000), st.integers(0, 100_000), st.integers(0, 100_000), st.sampled_from(Arithmetic))
def test_mini_sequences_cover_every_row_within_the_budget(
    tokens: int, hidden: int, columns: int, arithmetic: Arithmetic
) -> None:
    slices = list(mini_sequences(tokens, hidden, columns, arithmetic))
    assert [row for one in slices for row in range(one.start, one.stop)] == list(range(tokens))
    for one in slices:
        rows = one.stop - one.start
        assert rows % 16 == 0 or one is slices[-1]
        if rows > 16:
            assert rows * columns * 8 <= SCRATCH_BYTES
            assert rows * hidden * 4 <= NORMED_BYTES


@pytest.mark.parametrize("hidden", [896, 2048, 3072, 4096, 8192])
def test_the_rows_of_a_message_are_normed_as_one(hidden: int) -> None:
    tokens = StepLimits.of(hidden).chunk_tokens
    assert list(mini_sequences(tokens, hidden, hidden, Arithmetic.INT8)) == [slice(0, tokens)]
