"""The FFN with quantised matrices: the bits of its parts and of each token alone, in bounded memory."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.panel_reference import Quantised, random_matrix
from tests.unit.kernels.test_ffn import Allocations
from tests.unit.kernels.test_linear import open_library, opened
from tpiedge.kernels import ffn as module
from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.dispatch import NATIVE_TOKENS
from tpiedge.kernels.ffn import NORMED_BYTES, SCRATCH_BYTES, ffn
from tpiedge.kernels.grid import MOST, Grid, widened
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.norm import rms_norm
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import PanelShape
from tpiedge.kernels.swiglu import swiglu

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
            for tokens in counts:
                x = torch.randn(tokens, HIDDEN)
                h = rms_norm(x, norm, 1e-5, linear.pool)
                y_gate, y_up = linear.project(h, gate), linear.project(h, up)
                y_gate = y_gate if gate_bias is None else y_gate + gate_bias
                y_up = y_up if up_bias is None else y_up + up_bias
                expected = linear.contract(swiglu(y_gate, y_up, linear.pool), down, grid)
                y = ffn(x, norm, 1e-5, gate, up, down, linear, (gate_bias, up_bias), grid)
                assert y.dtype is expected.dtype
                assert torch.equal(y, expected)
                if of == "wide" and tokens:
                    assert y.dtype is torch.int64
                    assert (y > -MOST).all()


@pytest.mark.parametrize("of", ["narrow", "wide"])
@pytest.mark.parametrize("bits", MATRICES)
@pytest.mark.parametrize("isa", AVAILABLE)
def test_bits_of_a_token_depend_neither_on_the_others_nor_on_threads(
    isa: str, bits: int, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, norm, biases = torch.randn(75, HIDDEN), torch.randn(HIDDEN), (torch.randn(INNER), torch.randn(INNER))
    grid = GRIDS[of] or FINE[bits]
    with opened(isa, INT8) as linear:
        y = ffn(x, norm, 1e-5, *_panels(bits), linear, biases, grid)
    for threads in (1, 2, 3):
        with opened(isa, INT8, threads) as linear:
            for first, last in [(0, 1), (74, 75), (5, 7), (20, 33), (9, 75)]:
                some = ffn(x[first:last], norm, 1e-5, *_panels(bits), linear, biases, grid)
                assert torch.equal(some, y[first:last])
            with monkeypatch.context() as patch:
                patch.setattr(module, "SCRATCH_BYTES", 16 * 8 * INNER)
                assert torch.equal(ffn(x, norm, 1e-5, *_panels(bits), linear, biases, grid), y)


@pytest.mark.parametrize("bits", MATRICES)
def test_equals_float64_within_what_quantising_activations_costs(bits: int) -> None:
    gate, up, down = (w.values for w in MATRICES[bits])
    x, norm = torch.randn(40, HIDDEN), torch.randn(HIDDEN)
    h = rms_norm(x.double(), norm.double(), 1e-5).numpy()
    raised = h @ gate.T
    inner = raised / (1 + np.exp(-raised)) * (h @ up.T)
    expected = inner @ down.T
    with Linear(INT8, 2, open_library()) as linear:
        y = widened(ffn(x, norm, 1e-5, *_panels(bits), linear, grid=GRID), GRID).numpy()
    assert np.abs(y - expected).max() < 0.02 * np.abs(expected).max()


def test_an_empty_share_adds_nothing() -> None:
    random = np.random.default_rng(0)
    gate, up = (random_matrix(random, 4, 0, HIDDEN, 48, False).matrix for _ in range(2))
    down = random_matrix(random, 4, 0, OUTPUTS, 48, True).matrix
    with Linear(INT8, 2, open_library()) as linear:
        for tokens in (0, 1, 20):
            x, norm = torch.randn(tokens, HIDDEN), torch.ones(HIDDEN)
            y = ffn(x, norm, 1e-5, gate, up, down, linear, grid=GRID)
            assert torch.equal(y, torch.zeros((tokens, OUTPUTS), dtype=torch.int32))


def test_mixed_matrices_are_multiplied_in_turn() -> None:
    gate, _, down = _panels(4)
    up = torch.randn(INNER, HIDDEN).bfloat16()
    x, norm = torch.randn(3, HIDDEN), torch.ones(HIDDEN)
    with Linear(INT8, 1, open_library()) as linear:
        h = rms_norm(x, norm, 1e-5, linear.pool)
        inner = swiglu(linear.project(h, gate), linear.project(h, up), linear.pool)
        y = ffn(x, norm, 1e-5, gate, up, down, linear, grid=GRID)
        assert torch.equal(y, linear.contract(inner, down, GRID))


def _zeros(bits: int, rows: int, cols: int, transposed: bool) -> PanelMatrix:
    shape = PanelShape(bits, cols, rows) if transposed else PanelShape(bits, rows, cols)
    return PanelMatrix(torch.zeros(shape.nbytes, dtype=torch.uint8), bits, rows, cols, rows, 0, transposed)


@pytest.mark.parametrize(
    ("tokens", "hidden", "columns", "least"), [(700, 32, 9000, 6 << 20), (3000, 1500, 32, 1 << 20)]
)
def test_temporaries_stay_within_their_budget(tokens: int, hidden: int, columns: int, least: int) -> None:
    x = torch.randn(tokens, hidden)
    gate, up = (_zeros(4, columns, hidden, False) for _ in range(2))
    down = _zeros(4, columns, 32, True)
    with Linear(INT8, 1, open_library()) as linear, Allocations() as seen:
        seen._known.add(x.untyped_storage().data_ptr())
        y = ffn(x, torch.ones(hidden), 1e-5, gate, up, down, linear, grid=GRID)
    assert not y.any()
    assert least < seen.most < SCRATCH_BYTES + NORMED_BYTES + (1 << 20)
    assert tokens * max(2 * columns, hidden) * 4 > SCRATCH_BYTES + NORMED_BYTES + (1 << 20)


def test_wrong_tensors_are_refused() -> None:
    gate, up, down = _panels(4)
    x, norm = torch.ones(1, HIDDEN), torch.ones(HIDDEN)
    fewer: Tensor | PanelMatrix = random_matrix(np.random.default_rng(0), 4, 48, OUTPUTS, 48, True).matrix
    with Linear(INT8, 1, open_library()) as linear:
        for args in [
            (x.double(), norm, 1e-5, gate, up, down),
            (x, norm[:7], 1e-5, gate, up, down),
            (x, norm, 1e-5, gate, up, fewer),
            (x, norm, 1e-5, gate, down, down),
            (x, norm, 1e-5, gate, up, gate),
            (x[:, :7], norm, 1e-5, gate, up, down),
        ]:
            with pytest.raises(ValueError):
                ffn(*args, linear, grid=GRID)
        for biases in [(norm, None), (None, torch.ones(INNER).double()), (None, torch.ones(2 * INNER)[::2])]:
            with pytest.raises(ValueError, match="a bias is"):
                ffn(x, norm, 1e-5, gate, up, down, linear, biases, GRID)
        with pytest.raises(ValueError, match="grid"):
            ffn(x, norm, 1e-5, gate, up, down, linear)
