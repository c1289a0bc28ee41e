"""Mini-sequences: the FFN of any number of tokens in bounded memory, with the same result."""

import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tpiedge.engine.steps import StepLimits
from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.ffn import NORMED_BYTES, SCRATCH_BYTES, ffn, mini_sequences
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.norm import rms_norm
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.kernels.swiglu import swiglu

WIDENED_BYTES = 4 << 20  # a tile of bf16 weights in f32


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


class Allocations(TorchDispatchMode):
    """The most bytes that tensors made inside took at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        address, nbytes = storage.data_ptr(), storage.nbytes()
        if address in self._known or not nbytes:
            return
        self._known.add(address)
        self.now += nbytes
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, address, nbytes)

    def _gone(self, address: int, nbytes: int) -> None:
        self._known.discard(address)
        self.now -= nbytes


@pytest.mark.parametrize("arithmetic", Arithmetic)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_temporaries_stay_within_their_budget(
    dtype: torch.dtype, biased: bool, arithmetic: Arithmetic
) -> None:
    tokens, hidden, columns = 700, 32, 9000
    x = torch.randn(tokens, hidden)
    gate, up, down = (torch.randn(columns, hidden).to(dtype) for _ in range(3))
    biases = (torch.randn(columns), torch.randn(columns)) if biased else (None, None)
    norm = torch.randn(hidden)
    with Linear(arithmetic, 1, kernel_library()) as linear:
        inputs = [gate, up, down, norm, x, *biases]
        with Allocations() as seen:
            for given_tensor in inputs:
                if given_tensor is not None:
                    seen._known.add(given_tensor.untyped_storage().data_ptr())
            y = ffn(x, norm, 1e-5, gate, up, down, linear, biases)
        h = rms_norm(x, norm, 1e-5)
        y_gate, y_up = linear.project_many(h, (gate, up))
        if biased:
            y_gate, y_up = y_gate + biases[0], y_up + biases[1]
        expected = linear.contract(swiglu(y_gate, y_up), down)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert 6 << 20 < seen.most < SCRATCH_BYTES + WIDENED_BYTES + (2 << 20)
    assert tokens * columns * 8 > 4 * SCRATCH_BYTES
