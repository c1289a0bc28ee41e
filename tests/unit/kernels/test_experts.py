"""Mixtures against loops over tokens, experts and columns; the choices vary, tie, and are all the same."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.mixtures import Mixture, random_mixture
from tests.unit.kernels.panel_reference import F32
from tests.unit.kernels.test_linear import ENGINES, opened
from tests.unit.kernels.test_stack import GRID as STACK_GRID
from tests.unit.kernels.test_stack import HIDDEN, WIDTH, blocks, new_cache, rotation
from tpiedge.kernels.attention_block import FusedAttention, FusedLayers
from tpiedge.kernels.elementwise import Activation, Rotation, rms_norm
from tpiedge.kernels.experts import FusedExperts, experts, normed, route
from tpiedge.kernels.ffn import FusedFFN
from tpiedge.kernels.grid import MOST, NOT_A_NUMBER, BlockEnd, Grid, add_sums
from tpiedge.kernels.library import Pool
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kernels.panel_matrix import Weight

EPS = 1e-5
INT8 = Arithmetic.INT8
Routed = tuple[Tensor, Tensor]


def logit(h_H: F32, router_H: F32) -> np.float32:
    lanes = [np.float32(0)] * 16
    for column, (x, w) in enumerate(zip(h_H, router_H, strict=True)):
        lanes[column % 16] += x * w
    for half in (8, 4, 2, 1):
        lanes = [lanes[lane] + lanes[lane + half] for lane in range(half)]
    return lanes[0]


def routed(h_TH: Tensor, router_EH: Tensor, chosen: int, normalised: bool) -> Routed:
    found = [_routed([logit(h, w) for w in router_EH.numpy()], chosen, normalised) for h in h_TH.numpy()]
    ids, weights = ([one[at] for one in found] for at in (0, 1))
    return torch.tensor(ids).view(-1, chosen), torch.tensor(weights).view(-1, chosen)


def _routed(logits: list[np.float32], chosen: int, normalised: bool) -> tuple[list[int], list[float]]:
    if not all(map(math.isfinite, logits)):
        return list(range(chosen)), [math.nan] * chosen
    ids = sorted(sorted(range(len(logits)), key=lambda e: (-logits[e], e))[:chosen])
    parts = [math.exp(float(one) - float(max(logits))) for one in logits]
    total = sum(parts[e] for e in (ids if normalised else range(len(logits))))
    return ids, [parts[e] / total for e in ids]


def some_rows(tokens: int, hidden: int) -> Tensor:
    """Rows of any size; some are zero, so that all logits tie, and some have no numbers."""
    x_TH = torch.randn(tokens, hidden) * 10.0 ** torch.randint(-3, 3, (tokens, 1))
    x_TH[3::7] = 0
    x_TH[4::9, hidden // 2] = math.nan
    x_TH[5::11, hidden - 1] = math.inf
    return x_TH


CASES = [(1, 1, 1), (5, 1, 1), (8, 8, 40), (12, 3, 16), (7, 2, 100), (20, 5, 75)]


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(("count", "chosen", "hidden"), CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_router_chooses_the_largest_logits(
    engine: str, count: int, chosen: int, hidden: int, normalised: bool
) -> None:
    router_EH = torch.randn(count, hidden)
    router_EH[1::5] = router_EH[0]  # ties
    with opened(engine, threads=2) as linear, np.errstate(all="ignore"):
        for tokens in (0, 1, 40):
            h_TH = some_rows(tokens, hidden)
            ids_Tk, weights_Tk = route(h_TH, router_EH, chosen, normalised, linear.pool)
            expected_Tk, close_Tk = routed(h_TH, router_EH, chosen, normalised)
            assert (ids_Tk.dtype, weights_Tk.dtype) == (torch.int64, torch.float32)
            assert torch.equal(ids_Tk, expected_Tk)
            torch.testing.assert_close(
                weights_Tk.double(), close_Tk.double(), rtol=1e-7, atol=1e-15, equal_nan=True
            )


@pytest.mark.parametrize("engine", ENGINES)
def test_routes_have_the_bits_of_numpy_whatever_rows_go_together(engine: str) -> None:
    h_TH, router_EH = some_rows(512, 200), torch.randn(64, 200) / 10
    expected = route(h_TH, router_EH, 6, False, None)
    assert len(np.unique(expected[0].numpy())) == 64
    for threads in (1, 2, 3):
        with opened(engine, threads=threads) as linear:
            for rows in (slice(512), slice(1), slice(7, 8), slice(300, 317), slice(100, 228)):
                found = route(h_TH[rows], router_EH, 6, False, linear.pool)
                for one, other in zip(found, expected, strict=True):
                    assert torch.equal(one.view(torch.uint8), other[rows].contiguous().view(torch.uint8))


@pytest.mark.parametrize("engine", ENGINES)
def test_norms_have_the_same_bits_without_native_kernels(engine: str) -> None:
    for hidden in (1, 16, 40, 64, 130, 200, 2048):
        x_TH, norm_H = some_rows(40, hidden), torch.rand(hidden) + 0.5
        x_TH[9] *= 1e18  # squares overflow
        with opened(engine) as linear:
            found_TH, expected_TH = (normed(x_TH, norm_H, EPS, pool) for pool in (linear.pool, None))
            assert torch.equal(found_TH.nan_to_num(nan=7), expected_TH.nan_to_num(nan=7))
            torch.testing.assert_close(found_TH, rms_norm(x_TH, norm_H, EPS), equal_nan=True)


@pytest.mark.parametrize(("chosen", "says"), [(0, "0 of 3"), (4, "4 of 3")])
def test_impossible_choices_are_refused(chosen: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        route(torch.zeros(1, 5), torch.zeros(3, 5), chosen, True, None)


def plain_experts(count: int, hidden: int, columns: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [
        (torch.randn(columns, hidden) / 5, torch.randn(columns, hidden) / 5, torch.randn(columns, hidden) / 5)
        for _ in range(count)
    ]


def mixed(x_TH: Tensor, given: Routed, matrices: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    y_TH = torch.zeros(x_TH.shape, dtype=torch.float64)
    for token, (ids, weights) in enumerate(zip(*given, strict=True)):
        for number, weight in zip(ids.tolist(), weights.tolist(), strict=True):
            gate, up, down = (w.double() for w in matrices[number])
            x = x_TH[token].double()
            y_TH[token] += weight * (torch.nn.functional.silu(gate @ x) * (up @ x)) @ down
    return y_TH


@pytest.mark.parametrize("arithmetic", [Arithmetic.F32, Arithmetic.BF16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("engine", ENGINES)
def test_plain_experts_equal_float64(engine: str, dtype: torch.dtype, arithmetic: Arithmetic) -> None:
    matrices, norm_H = plain_experts(6, 40, 24), torch.rand(40) + 0.5
    stored: list[tuple[Weight, Weight, Weight]] = [
        (gate.to(dtype), up.to(dtype), down.to(dtype)) for gate, up, down in matrices
    ]
    router_EH, x_TH = torch.randn(6, 40), torch.randn(50, 40)
    x_TH[:, 0], router_EH[4, 0], router_EH[5, 0] = 2, -100, 100  # none chooses 4, all choose 5
    h_TH = rms_norm(x_TH, norm_H, EPS)
    expected_TH = mixed(h_TH, route(h_TH, router_EH, 2, True, None), matrices)
    far = 1e-5 if (dtype, arithmetic) == (torch.float32, Arithmetic.F32) else 0.1
    with opened(engine, arithmetic, 2) as linear:
        found_TH = experts(x_TH, norm_H, EPS, router_EH, stored.__getitem__, 2, True, linear)
        torch.testing.assert_close(found_TH.double(), expected_TH, rtol=far, atol=far)


Q4, UNLIKE, FLOATS = ("q4",) * 3, ("q8", "q4_k", "q6_k"), ("mxfp4", "mxfp4", "q5_0")
#: Tokens, experts, chosen, hidden, columns, formats, exponent.
SOME = [
    (1, 3, 1, 64, 40, Q4, -14),
    (5, 4, 2, 40, 150, UNLIKE, -14),
    (3, 2, 2, 96, 64, FLOATS, -14),
    (4, 3, 2, 40, 100, Q4, -36),
]


@pytest.mark.parametrize(("tokens", "count", "chosen", "hidden", "columns", "formats", "exponent"), SOME)
@pytest.mark.parametrize("engine", AVAILABLE)
def test_quantised_experts_have_the_bits_of_the_definition(
    engine: str,
    tokens: int,
    count: int,
    chosen: int,
    hidden: int,
    columns: int,
    formats: tuple[str, str, str],
    exponent: int,
) -> None:
    random = np.random.default_rng(tokens)
    mixture = random_mixture(random, count, hidden, columns, formats)
    x_TH, norm_H, router_EH = (
        torch.randn(tokens, hidden),
        torch.rand(hidden) + 0.5,
        torch.randn(count, hidden),
    )
    x_TH[2:3, 1] = torch.inf
    with opened(engine, Arithmetic.INT8, 2) as linear:
        assert linear.pool is not None
        h_TH = rms_norm(x_TH, norm_H, EPS, linear.pool)
        routes = route(h_TH, router_EH, chosen, True, None)
        expected_TH = torch.from_numpy(mixture.sums(h_TH, routes, exponent, linear.pool))
        of_block = x_TH, norm_H, EPS, router_EH, mixture.matrices, chosen, True, linear
        found_TH = experts(*of_block, grid=Grid(exponent))
        assert torch.equal(found_TH.long(), expected_TH)
        assert found_TH.dtype is (torch.int64 if tokens > 2 else torch.int32)


@dataclass(frozen=True)
class Shape:
    count: int
    chosen: int
    hidden: int = 40
    columns: int = 100
    formats: tuple[str, str, str] = Q4


SHAPES = {
    "one": Shape(1, 1),
    "first": Shape(9, 1),
    "all": Shape(4, 4, 33, 64),
    "many": Shape(64, 8, 90, 70),
    "unlike": Shape(6, 2, 100, 150, UNLIKE),
    "floats": Shape(5, 3, 64, 128, FLOATS),
    "q8": Shape(5, 3, 200, 30, ("q8",) * 3),
}
#: "wide" is so fine that sums need 64 bits, but no part more than 2**46 steps.
GRIDS = {"narrow": Grid(-14), "wide": Grid(-36), "tight": Grid(-14, 100), "coarse": Grid(3)}


def block(shape: Shape, seed: int = 1) -> tuple[Mixture, Tensor, Tensor]:
    """Also returns a norm and a router. One expert is never chosen if others suffice."""
    mixture = random_mixture(
        np.random.default_rng(seed), shape.count, shape.hidden, shape.columns, shape.formats
    )
    router_EH = torch.randn(shape.count, shape.hidden)
    router_EH[2::3] = router_EH[0]  # ties
    router_EH[-1] = 0
    return mixture, torch.rand(shape.hidden) + 0.5, router_EH


def fused(
    made: tuple[Mixture, Tensor | None, Tensor], shape: Shape, pool: Pool, grid: Grid, activation: Activation
) -> FusedExperts:
    mixture, norm_H, router_EH = made
    sizes = shape.count, mixture.expert_nbytes, shape.chosen, True
    return FusedExperts(norm_H, EPS, router_EH, mixture.matrices(0), *sizes, pool, grid, activation)


@pytest.mark.parametrize("of", GRIDS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("engine", AVAILABLE)
def test_one_call_equals_experts_one_after_the_other(engine: str, name: str, of: str) -> None:
    shape, grid = SHAPES[name], GRIDS[of]
    mixture, norm_H, router_EH = made = block(shape)
    for threads, counts in ((1, (0, 3, 70)), (2, (1, 16)), (3, (37,))):
        with opened(engine, INT8, threads) as linear:
            assert linear.pool is not None
            for tokens in counts:
                x_TH = torch.randn(tokens, shape.hidden)
                of_block = x_TH, norm_H, EPS, router_EH, mixture.matrices, shape.chosen, True, linear
                expected_TH = experts(*of_block, grid=grid)
                found_TH = fused(made, shape, linear.pool, grid, Activation.SILU).run(x_TH)
                assert torch.equal(found_TH.long(), expected_TH.long())
                if of != "narrow" and tokens:
                    assert found_TH.dtype is (torch.int32 if of == "coarse" else torch.int64)
                # Parts of matrices with large scales are out of range of the finest grid.
                assert of == "wide" or (found_TH.long() > -MOST).all()


@pytest.mark.parametrize("most", [Grid(0).most, 0])
def test_stack_has_layers_of_experts_beside_dense_ones(linear: Linear, most: int) -> None:
    pool, grid, shape = linear.pool, Grid(-14, most), Shape(6, 2, HIDDEN, 150, UNLIKE)
    assert pool is not None
    cache = new_cache("f32")
    dense = blocks(linear, cache)
    mixtures = [fused(block(shape, seed), shape, pool, grid, Activation.SILU) for seed in (1, 2)]
    layers: list[tuple[FusedAttention, *tuple[FusedFFN | FusedExperts, ...]]]
    layers = [(dense[0][0], mixtures[0]), dense[1], (*dense[2], mixtures[1])]
    end = BlockEnd(None, torch.rand(HIDDEN), EPS, scale=0.7)
    ends = [(BlockEnd(), end), (BlockEnd(), BlockEnd()), (BlockEnd(), end, BlockEnd())]
    stack, (together, alone) = FusedLayers(layers, pool, ends), (cache.table(80) for _ in range(2))
    for start, tokens in ((0, 40), (40, 1)):
        turned = Rotation(*rotation(start, tokens, WIDTH))
        x_TH = torch.randn(tokens, HIDDEN)
        found_TH = x_TH.clone()
        stack.run(found_TH, cache.spans((tokens, start, together)), [turned])
        for (attention, *others), of_layer in zip(layers, ends, strict=True):
            sums_TH = attention.run(x_TH, cache.spans((tokens, start, alone)), turned)
            add_sums(x_TH, sums_TH, STACK_GRID, pool, of_layer[0])
            for other, one in zip(others, of_layer[1:], strict=True):
                own = grid if isinstance(other, FusedExperts) else STACK_GRID
                add_sums(x_TH, other.run(x_TH), own, pool, one)
        assert found_TH.isfinite().all()
        assert torch.equal(found_TH, x_TH)


@pytest.mark.parametrize("engine", AVAILABLE)
def test_rows_without_numbers_spoil_no_others(engine: str) -> None:
    shape = SHAPES["many"]
    made = block(shape)
    with opened(engine, INT8, 2) as linear:
        assert linear.pool is not None
        run = fused(made, shape, linear.pool, GRIDS["narrow"], Activation.SILU).run
        x_TH = torch.randn(40, shape.hidden)
        expected_TH = run(x_TH)
        x_TH[3, 5], x_TH[20, 7] = torch.nan, torch.inf
        found_TH = run(x_TH)
        lost_T = (found_TH == NOT_A_NUMBER).all(1)
        assert lost_T.nonzero().flatten().tolist() == [3, 20]
        assert torch.equal(found_TH[~lost_T], expected_TH[~lost_T].long())


@pytest.mark.parametrize("engine", AVAILABLE)
def test_row_bits_do_not_depend_on_rows_that_share_experts(engine: str) -> None:
    """All rows choose the same experts, which so have more rows than a tile and a batch."""
    shape = Shape(6, 2, 48, 640)
    mixture, norm_H, router_EH = block(shape)
    x_TH = torch.randn(600, shape.hidden)
    x_TH[:, 0], router_EH[:2, 0] = 3, 100  # all choose the first two
    with opened(engine, INT8, 2) as linear:
        assert linear.pool is not None
        for norm in (norm_H, None):
            made = fused(
                (mixture, norm, router_EH), shape, linear.pool, GRIDS["narrow"], Activation.GELU_TANH
            )
            found_TH = made.run(x_TH)
            for rows in (slice(1), slice(3, 5), slice(77, 130), slice(599, 600)):
                assert torch.equal(found_TH[rows], made.run(x_TH[rows]))


def test_experts_that_do_not_fit_are_refused() -> None:
    shape = SHAPES["floats"]
    mixture, norm_H, router_EH = block(shape)
    matrices = mixture.matrices(0)
    with opened(AVAILABLE[-1], INT8) as linear:
        pool = linear.pool
        assert pool is not None
        for count, nbytes, norm, router, says in (
            (6, mixture.expert_nbytes, norm_H, torch.zeros(6, 64), "need"),
            (5, mixture.expert_nbytes + 1, norm_H, router_EH, "need"),
            (5, mixture.expert_nbytes, norm_H[1:], router_EH, "norm"),
            (5, mixture.expert_nbytes, norm_H, router_EH[:, 1:], "router"),
            (5, mixture.expert_nbytes, norm_H, router_EH[1:], "router"),
        ):
            with pytest.raises(ValueError, match=says):
                FusedExperts(norm, EPS, router, matrices, count, nbytes, 3, True, pool, Grid(0))
        with pytest.raises(ValueError, match="7 of 5"):
            FusedExperts(norm_H, EPS, router_EH, matrices, 5, mixture.expert_nbytes, 7, True, pool, Grid(0))
