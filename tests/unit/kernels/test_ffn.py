import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.panel_reference import Quantised, random_matrix, sums
from tests.unit.kernels.test_linear import opened
from tpiedge.engine.steps import StepLimits
from tpiedge.kernels.elementwise import Activation, activate, rms_norm
from tpiedge.kernels.ffn import NORMED_BYTES, SCRATCH_BYTES, FusedFFN, ffn, mini_sequences
from tpiedge.kernels.grid import MOST, Grid
from tpiedge.kernels.library import NATIVE_TOKENS
from tpiedge.kernels.linear import Arithmetic
from tpiedge.kernels.panel_matrix import PanelMatrix


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
def test_rows_of_one_chunk_form_one_mini_sequence(hidden: int) -> None:
    tokens = StepLimits.of(hidden).chunk_tokens
    assert list(mini_sequences(tokens, hidden, hidden, Arithmetic.INT8)) == [slice(0, tokens)]


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
def test_fused_ffn_equals_its_parts(engine: str, bits: int, biased: tuple[bool, bool], of: str) -> None:
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
                expected = linear.contract(activate(y_gate, y_up, pool=linear.pool), down, grid)
                y = FusedFFN(norm, 1e-5, (gate, up, down), linear.pool, grid, (gate_bias, up_bias)).run(x)
                assert y.dtype is expected.dtype
                assert torch.equal(y, expected)
                if of == "wide" and tokens:
                    assert y.dtype is torch.int64
                    assert (y > -MOST).all()


@pytest.mark.parametrize("bits", MATRICES)
@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("engine", AVAILABLE)
def test_fused_ffn_has_other_activations_and_leaves_out_gate_and_norm(
    engine: str, gated: bool, normed: bool, activation: Activation, bits: int
) -> None:
    gate, up, down = _panels(bits)
    norm, up_bias = torch.randn(HIDDEN) if normed else None, torch.randn(INNER)
    with opened(engine, INT8, 2) as linear:
        assert linear.pool is not None
        for tokens in (1, 5):
            x = torch.randn(tokens, HIDDEN)
            h = x if norm is None else rms_norm(x, norm, 1e-5, linear.pool)
            y_up = linear.project(h, up) + up_bias
            inner = activate(
                *((linear.project(h, gate), y_up) if gated else (y_up,)),
                activation=activation,
                pool=linear.pool,
            )
            matrices = (gate if gated else None, up, down)
            fused = FusedFFN(norm, 1e-5, matrices, linear.pool, GRID, (None, up_bias), activation)
            assert torch.equal(fused.run(x), linear.contract(inner, down, GRID))
            if not gated:
                with pytest.raises(ValueError, match="bias"):
                    FusedFFN(norm, 1e-5, matrices, linear.pool, GRID, (up_bias, None))


@pytest.mark.parametrize("of", ["narrow", "wide"])
@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("bits", MATRICES)
@pytest.mark.parametrize("engine", AVAILABLE)
def test_given_inputs_take_the_place_of_up(engine: str, bits: int, activation: Activation, of: str) -> None:
    grid, (gate, _, down) = GRIDS[of] or FINE[bits], MATRICES[bits]
    bias, all_inputs = torch.randn(INNER), torch.randn(5, 3 * INNER)
    with opened(engine, INT8, 2) as linear:
        assert linear.pool is not None
        matrices = gate.matrix, None, down.matrix
        fused = FusedFFN(None, 0, matrices, linear.pool, grid, (bias, None), activation)
        for tokens in (0, 1, 5):
            x, inputs = torch.randn(tokens, HIDDEN), all_inputs[:tokens, INNER : 2 * INNER]
            own = linear.project(x, gate.matrix) + bias
            inner = activate(own, inputs.contiguous(), activation, linear.pool)
            found = fused.run(x, inputs)
            assert found.dtype is (torch.int64 if of == "wide" and tokens else torch.int32)
            assert torch.equal(found, linear.contract(inner, down.matrix, grid))
            assert torch.equal(found.long(), torch.from_numpy(sums(inner.numpy(), down, grid.exponent)))


@pytest.mark.parametrize("arithmetic", [INT8, Arithmetic.F32])
def test_many_rows_of_inputs_go_piece_by_piece(
    arithmetic: Arithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, inner, outputs = 300, 16, 4000 if arithmetic is INT8 else 40  # 4000 pass with fewer tokens
    random = np.random.default_rng(1)
    gate = random_matrix(random, 4, inner, HIDDEN, inner, False).matrix
    down = random_matrix(random, 8, inner, outputs, inner, True).matrix
    x, inputs = torch.randn(tokens, HIDDEN), torch.randn(tokens, 2 * inner)[:, inner:]
    for scratch in (SCRATCH_BYTES, 140 * inner * 8):
        monkeypatch.setattr("tpiedge.kernels.ffn.SCRATCH_BYTES", scratch)
        with opened(AVAILABLE[-1], arithmetic, 2) as linear:
            assert linear.pool is not None
            inner_TF = activate(linear.project(x, gate), None, pool=linear.pool) * inputs
            if arithmetic is INT8:
                found = FusedFFN(None, 0, (gate, None, down), linear.pool, GRID).run(x, inputs)
                assert torch.equal(found, linear.contract(inner_TF, down, GRID))
            else:
                found = ffn(x, None, 0, gate, None, down, linear, inputs_TF=inputs)
                torch.testing.assert_close(found, linear.contract(inner_TF, down))


def test_inputs_that_do_not_fit_are_refused() -> None:
    gate, up, down = _panels(4)
    x, inputs = torch.zeros(2, HIDDEN), torch.zeros(2, INNER)
    with opened(AVAILABLE[-1], INT8) as linear:
        pool = linear.pool
        assert pool is not None
        given, own = (FusedFFN(None, 0, (gate, of, down), pool, GRID) for of in (None, up))
        for wrong in (None, inputs[:1], inputs[:, :-1], inputs.double(), torch.zeros(INNER, 2).t()):
            with pytest.raises(ValueError, match="inputs"):
                given.run(x, wrong)
            with pytest.raises(ValueError, match="inputs"):
                ffn(
                    x,
                    None,
                    0,
                    torch.zeros(INNER, HIDDEN),
                    None,
                    torch.zeros(INNER, 5),
                    linear,
                    inputs_TF=wrong,
                )
        with pytest.raises(ValueError, match="not used"):
            own.run(x, inputs)
        with pytest.raises(ValueError, match="gate, up and down"):
            FusedFFN(None, 0, (None, None, down), pool, GRID)
        with pytest.raises(ValueError, match="bias"):
            FusedFFN(None, 0, (gate, None, down), pool, GRID, (None, torch.zeros(INNER)))
