"""The FFN with quantised matrices: the bits of its parts and of each token alone, in bounded memory."""

import numpy as np
import pytest
import torch

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.panel_reference import Quantised, random_matrix
from tests.unit.kernels.test_linear import opened
from tpiedge.kernels.elementwise import rms_norm, swiglu
from tpiedge.kernels.ffn import FusedFFN
from tpiedge.kernels.grid import MOST, Grid
from tpiedge.kernels.library import NATIVE_TOKENS
from tpiedge.kernels.linear import Arithmetic
from tpiedge.kernels.panel_matrix import PanelMatrix

INT8 = Arithmetic.INT8
GRID = Grid(-18)
#: For each number of bits: so fine that sums need 64, but no part more than 2**46 steps.
FINE = {4: Grid(-36), 8: Grid(-28)}
GRIDS = {"narrow": GRID, "wide": None, "tight": Grid(-18, 100), "coarse": Grid(3)}
HIDDEN, INNER, OUTPUTS = 90, 200, 77


def _matrices(bits: int) -> tuple[Quantised, Quantised, Quantised]:
    random = np.random.default_rng(bits)
    gate, up = (random_matrix(random, bits, INNER, HIDDEN, 48, False) for _ in range(2))
    return gate, up, random_matrix(random, bits, INNER, OUTPUTS, 48, True)


MATRICES = {bits: _matrices(bits) for bits in (4, 8)}


def _panels(bits: int) -> tuple[PanelMatrix, PanelMatrix, PanelMatrix]:
    gate, up, down = MATRICES[bits]
    return gate.matrix, up.matrix, down.matrix


@pytest.mark.parametrize("of", GRIDS)
@pytest.mark.parametrize("biased", [(False, False), (True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("bits", MATRICES)
@pytest.mark.parametrize("engine", AVAILABLE)
def test_has_the_integers_of_its_parts(engine: str, bits: int, biased: tuple[bool, bool], of: str) -> None:
    grid = GRIDS[of] or FINE[bits]
    gate, up, down = _panels(bits)
    norm = torch.randn(HIDDEN)
    gate_bias, up_bias = (torch.randn(INNER) if given else None for given in biased)
    for threads, counts in ((1, (0, 3)), (2, (1, NATIVE_TOKENS))):
        with opened(engine, INT8, threads) as linear:
            assert linear.pool is not None
            for tokens in counts:
                x = torch.randn(tokens, HIDDEN)
                h = rms_norm(x, norm, 1e-5, linear.pool)
                y_gate, y_up = linear.project(h, gate), linear.project(h, up)
                y_gate = y_gate if gate_bias is None else y_gate + gate_bias
                y_up = y_up if up_bias is None else y_up + up_bias
                expected = linear.contract(swiglu(y_gate, y_up, linear.pool), down, grid)
                y = FusedFFN(norm, 1e-5, (gate, up, down), linear.pool, grid, (gate_bias, up_bias)).run(x)
                assert y.dtype is expected.dtype
                assert torch.equal(y, expected)
                if of == "wide" and tokens:
                    assert y.dtype is torch.int64
                    assert (y > -MOST).all()
