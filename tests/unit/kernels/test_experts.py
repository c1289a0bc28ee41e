"""Mixtures against loops over tokens, experts and columns; the choices vary, tie, and are all the same."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor

from tests.unit.kernels.format_reference import Made
from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.mixtures import UNIT, Mixture, largest_codes, mixture_of, random_mixture
from tests.unit.kernels.panel_reference import F32
from tests.unit.kernels.test_linear import ENGINES, opened
from tests.unit.kernels.test_stack import GRID as STACK_GRID
from tests.unit.kernels.test_stack import HIDDEN, WIDTH, blocks, new_cache, rotation
from tpiedge.kernels.attention_block import FusedAttention, FusedLayers, FusedPair
from tpiedge.kernels.elementwise import Activation, Rotation, activate, rms_norm
from tpiedge.kernels.experts import ExpertBiases, FusedExperts, Mixed, Routed, Router, experts, normed, route
from tpiedge.kernels.ffn import FusedFFN
from tpiedge.kernels.grid import MOST, NOT_A_NUMBER, BlockEnd, Grid, add_sums
from tpiedge.kernels.library import Pool
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight

EPS = 1e-5
INT8 = Arithmetic.INT8


def logit(h_H: F32, router_H: F32) -> np.float32:
    lanes = [np.float32(0)] * 16
    for column, (x, w) in enumerate(zip(h_H, router_H, strict=True)):
        lanes[column % 16] += x * w
    for half in (8, 4, 2, 1):
        lanes = [lanes[lane] + lanes[lane + half] for lane in range(half)]
    return lanes[0]


def routed(h_TH: Tensor, router: Router) -> Routed:
    count = len(router.weights_EH)
    bias_E = torch.zeros(count) if router.bias_E is None else router.bias_E
    scale_E = torch.ones(count) if router.scale_E is None else router.scale_E
    found = [
        _routed(
            [logit(h, w) + bias for w, bias in zip(router.weights_EH.numpy(), bias_E.numpy(), strict=True)],
            router.chosen,
            router.normalised,
        )
        for h in h_TH.numpy()
    ]
    ids, weights = ([one[at] for one in found] for at in (0, 1))
    ids_Tk = torch.tensor(ids, dtype=torch.int64).view(-1, router.chosen)
    return ids_Tk, torch.tensor(weights).view(-1, router.chosen) * scale_E[ids_Tk]


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


def new_router(
    count: int, hidden: int, chosen: int, kind: str = "normalised", *, normed: bool = False
) -> Router:
    """Makes some of more than five experts alike, so that their scores tie unless there is a bias."""
    weights_EH = torch.randn(count, hidden)
    weights_EH[1::5] = weights_EH[0]
    return Router(
        weights_EH,
        chosen,
        kind != "parts of all",
        torch.randn(count) if kind == "biased" else None,
        torch.rand(hidden) + 0.5 if normed else None,
        torch.randn(count) if kind == "scaled" else None,
    )


CASES = [(1, 1, 1), (5, 1, 1), (8, 8, 40), (12, 3, 16), (7, 2, 100), (20, 5, 75)]
KINDS = ["normalised", "parts of all", "biased", "scaled"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "chosen", "hidden"), CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_router_chooses_the_largest_logits(
    engine: str, count: int, chosen: int, hidden: int, kind: str
) -> None:
    router = new_router(count, hidden, chosen, kind)
    with opened(engine, threads=2) as linear, np.errstate(all="ignore"):
        for tokens in (0, 1, 40):
            h_TH = some_rows(tokens, hidden)
            ids_Tk, weights_Tk = route(h_TH, router, linear.pool)
            expected_Tk, close_Tk = routed(h_TH, router)
            assert (ids_Tk.dtype, weights_Tk.dtype) == (torch.int64, torch.float32)
            assert torch.equal(ids_Tk, expected_Tk)
            torch.testing.assert_close(
                weights_Tk.double(), close_Tk.double(), rtol=2e-7, atol=1e-15, equal_nan=True
            )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_routes_have_the_bits_of_numpy_whatever_rows_go_together(engine: str, kind: str) -> None:
    h_TH, router = some_rows(512, 200), new_router(64, 200, 6, kind)
    router.weights_EH.copy_(torch.randn(64, 200) / 10)  # without ties
    expected = route(h_TH, router, None)
    assert len(np.unique(expected[0].numpy())) == 64
    for threads in (1, 2, 3):
        with opened(engine, threads=threads) as linear:
            for rows in (slice(512), slice(1), slice(7, 8), slice(300, 317), slice(100, 228)):
                found = route(h_TH[rows], router, linear.pool)
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


@pytest.mark.parametrize(
    ("router", "says"),
    [
        (Router(torch.zeros(3, 5), 0, True), "0 of 3"),
        (Router(torch.zeros(3, 5), 4, True), "4 of 3"),
        (Router(torch.zeros(3, 5), 2, True, torch.zeros(4)), "router's vector"),
        (Router(torch.zeros(3, 5), 2, True, None, torch.zeros(3)), "router's vector"),
        (Router(torch.zeros(3, 5), 2, True, None, None, torch.zeros(5)), "router's vector"),
    ],
)
def test_impossible_routers_are_refused(router: Router, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        route(torch.zeros(1, 5), router, None)


def new_biases(count: int, columns: int, outputs: int) -> ExpertBiases:
    return ExpertBiases(torch.randn(count, columns), torch.randn(count, columns), torch.randn(count, outputs))


def plain_experts(count: int, hidden: int, columns: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [
        (torch.randn(columns, hidden) / 5, torch.randn(columns, hidden) / 5, torch.randn(columns, hidden) / 5)
        for _ in range(count)
    ]


def mixed(
    x_TH: Tensor,
    given: Routed,
    matrices: list[tuple[Tensor, Tensor, Tensor]],
    activation: Activation,
    biases: ExpertBiases | None,
) -> Tensor:
    y_TH = torch.zeros(x_TH.shape, dtype=torch.float64)
    for token, (ids, weights) in enumerate(zip(*given, strict=True)):
        for number, weight in zip(ids.tolist(), weights.tolist(), strict=True):
            gate, up, down = (w.double() for w in matrices[number])
            of_gate, of_up, of_down = (0 if x is None else x[number].double() for x in biases or (None,) * 3)
            x = x_TH[token].double()
            inner = activate((gate @ x + of_gate)[None], (up @ x + of_up)[None], activation)[0]
            y_TH[token] += weight * (inner @ down + of_down)
    return y_TH


@pytest.mark.parametrize("arithmetic", [Arithmetic.F32, Arithmetic.BF16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("engine", ENGINES)
def test_plain_experts_equal_float64(engine: str, dtype: torch.dtype, arithmetic: Arithmetic) -> None:
    matrices, norm_H = plain_experts(6, 40, 24), torch.rand(40) + 0.5
    stored: list[tuple[Weight, Weight, Weight]] = [
        (gate.to(dtype), up.to(dtype), down.to(dtype)) for gate, up, down in matrices
    ]
    far = 1e-5 if (dtype, arithmetic) == (torch.float32, Arithmetic.F32) else 0.1
    for normed_alone, activation, biases in (
        (False, Activation.SILU, None),
        (True, Activation.GPT_OSS, new_biases(6, 24, 40)),
        (False, Activation.GELU_TANH, new_biases(6, 24, 40)._replace(down_EO=None)),
    ):
        router, x_TH = new_router(6, 40, 2, normed=normed_alone), torch.randn(50, 40)
        # None chooses 4, all choose 5.
        x_TH[:, 0], router.weights_EH[4, 0], router.weights_EH[5, 0] = 2, -100, 100
        h_TH = rms_norm(x_TH, norm_H, EPS)
        read_TH = h_TH if router.norm_H is None else rms_norm(x_TH, router.norm_H, EPS)
        chosen = route(read_TH, router, None)
        expected_TH = mixed(h_TH, chosen, matrices, activation, biases)
        with opened(engine, arithmetic, 2) as linear:
            found = experts(x_TH, norm_H, EPS, router, stored.__getitem__, linear, activation, biases=biases)
        assert torch.equal(found.chosen_Tk, chosen[0])
        torch.testing.assert_close(found.sums_TO.double(), expected_TH, rtol=far, atol=far)


Q4, UNLIKE, FLOATS, MXFP4 = ("q4",) * 3, ("q8", "q4_k", "q6_k"), ("mxfp4", "mxfp4", "q5_0"), ("mxfp4",) * 3


@dataclass(frozen=True)
class Shape:
    count: int
    chosen: int
    hidden: int = 40
    columns: int = 100
    formats: tuple[str, str, str] = Q4
    activation: Activation = Activation.SILU
    router: str = "normalised"
    #: Whether the router has a norm of its own.
    normed: bool = False
    biased: bool = False


@dataclass(frozen=True)
class Block:
    """A block of experts. One expert is never chosen if others suffice."""

    shape: Shape
    mixture: Mixture
    norm_H: Tensor | None
    router: Router
    biases: ExpertBiases | None

    def fused(self, pool: Pool, grid: Grid) -> FusedExperts:
        return FusedExperts(
            self.norm_H,
            EPS,
            self.router,
            self.mixture.matrices(0),
            self.mixture.expert_nbytes,
            pool,
            grid,
            self.shape.activation,
            self.biases,
        )

    def by_experts(self, x_TH: Tensor, linear: Linear, grid: Grid) -> Mixed:
        """Computes one expert after the other."""
        return experts(
            x_TH,
            self.norm_H,
            EPS,
            self.router,
            self.mixture.matrices,
            linear,
            self.shape.activation,
            grid,
            self.biases,
        )

    def defined(self, x_TH: Tensor, exponent: int, pool: Pool) -> Mixed:
        h_TH = x_TH if self.norm_H is None else rms_norm(x_TH, self.norm_H, EPS, pool)
        own = self.router.norm_H
        routes = route(h_TH if own is None else normed(x_TH, own, EPS, None), self.router, None)
        of_block = self.shape.activation, self.biases
        return Mixed(torch.from_numpy(self.mixture.sums(h_TH, routes, exponent, pool, *of_block)), routes[0])

    def of_units(self, start: int, stop: int) -> "Block":
        """Returns the part of a node that has these units of every expert."""
        mixture, biases, first, last = self.mixture, self.biases, start * UNIT, stop * UNIT

        def own(w: PanelMatrix) -> PanelMatrix:
            rows = min(last, w.rows) - first
            return replace(w, data_B=w.data_B[start * w.unit_nbytes :], rows=rows)

        gate, up, down = map(own, mixture.matrices(0))
        made = [(Made(gate, []), Made(up, []), Made(down, []))]
        biases = None if biases is None else biases.of_columns(slice(first, last), down.rows)
        return replace(self, mixture=Mixture(made, mixture.expert_nbytes), biases=biases)


def block(shape: Shape, seed: int = 1) -> Block:
    sizes = shape.count, shape.hidden, shape.columns
    mixture = random_mixture(np.random.default_rng(seed), *sizes, shape.formats)
    router = new_router(shape.count, shape.hidden, shape.chosen, shape.router, normed=shape.normed)
    router.weights_EH[-1] = 0
    biases = new_biases(shape.count, shape.columns, shape.hidden) if shape.biased else None
    return Block(shape, mixture, torch.rand(shape.hidden) + 0.5, router, biases)


SHAPES = {
    "one": Shape(1, 1),
    "first": Shape(9, 1),
    "all": Shape(4, 4, 33, 64),
    "many": Shape(64, 8, 90, 70),
    "unlike": Shape(6, 2, 100, 150, UNLIKE),
    "floats": Shape(5, 3, 64, 128, FLOATS),
    "q8": Shape(5, 3, 200, 30, ("q8",) * 3),
    "gpt_oss": Shape(8, 4, 90, 150, MXFP4, Activation.GPT_OSS, "biased", biased=True),
    "gemma4": Shape(16, 8, 60, 130, UNLIKE, Activation.GELU_TANH, "scaled", normed=True),
}
#: "wide" is so fine that sums need 64 bits, but no part more than 2**46 steps.
GRIDS = {"narrow": Grid(-14), "wide": Grid(-36), "tight": Grid(-14, 100), "coarse": Grid(3)}
#: Tokens, shape, exponent.
SOME = [
    (1, Shape(3, 1, 64, 40), -14),
    (5, Shape(4, 2, 40, 150, UNLIKE), -14),
    (3, Shape(2, 2, 96, 64, FLOATS), -14),
    (4, Shape(3, 2), -36),
    (2, Shape(4, 2, 40, 100, MXFP4, Activation.GPT_OSS, "biased", biased=True), -12),
    (6, Shape(4, 2, 40, 100, MXFP4, Activation.GPT_OSS, "biased", biased=True), -36),
    (5, Shape(4, 3, 40, 70, Q4, Activation.GELU_TANH, "scaled", normed=True), -14),
]


@pytest.mark.parametrize(("tokens", "shape", "exponent"), SOME)
@pytest.mark.parametrize("engine", AVAILABLE)
def test_quantised_experts_have_the_bits_of_the_definition(
    engine: str, tokens: int, shape: Shape, exponent: int
) -> None:
    made, x_TH = block(shape, tokens), torch.randn(tokens, shape.hidden)
    x_TH[2:3, 1] = torch.inf
    with opened(engine, INT8, 2) as linear:
        assert linear.pool is not None
        expected = made.defined(x_TH, exponent, linear.pool)
        found = made.by_experts(x_TH, linear, Grid(exponent))
        assert torch.equal(found.sums_TO.long(), expected.sums_TO)
        assert torch.equal(found.chosen_Tk, expected.chosen_Tk)
        assert found.sums_TO.dtype is (torch.int64 if tokens > 2 else torch.int32)


@pytest.mark.parametrize("of", GRIDS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("engine", AVAILABLE)
def test_one_call_equals_experts_one_after_the_other(engine: str, name: str, of: str) -> None:
    shape, grid, made = SHAPES[name], GRIDS[of], block(SHAPES[name])
    for threads, counts in ((1, (0, 3, 70)), (2, (1, 16)), (3, (37,))):
        with opened(engine, INT8, threads) as linear:
            assert linear.pool is not None
            for tokens in counts:
                x_TH = torch.randn(tokens, shape.hidden)
                expected = made.by_experts(x_TH, linear, grid)
                found = made.fused(linear.pool, grid).run(x_TH)
                assert torch.equal(found.sums_TO.long(), expected.sums_TO.long())
                assert torch.equal(found.chosen_Tk, expected.chosen_Tk)
                if of != "narrow" and tokens:
                    assert found.sums_TO.dtype is (torch.int32 if of == "coarse" else torch.int64)
                # Parts of matrices with large scales are out of range of the finest grid.
                assert of == "wide" or (found.sums_TO.long() > -MOST).all()


@pytest.mark.parametrize("name", ["gpt_oss", "gemma4"])
@pytest.mark.parametrize("engine", AVAILABLE)
def test_node_parts_add_up_to_the_whole(engine: str, name: str) -> None:
    made, grid = block(SHAPES[name]), GRIDS["narrow"]
    x_TH = torch.randn(40, made.shape.hidden)
    with opened(engine, INT8, 2) as linear:
        assert linear.pool is not None
        expected = made.fused(linear.pool, grid).run(x_TH)
        for cuts in ((0, 1, 2, 3), (0, 2, 3), (0, 1, 3)):
            parts = [made.of_units(*cut).fused(linear.pool, grid).run(x_TH) for cut in pairwise(cuts)]
            assert all(torch.equal(part.chosen_Tk, expected.chosen_Tk) for part in parts)
            total_TH = torch.stack([part.sums_TO.long() for part in parts]).sum(0)
            assert torch.equal(total_TH, expected.sums_TO.long())


def test_nodes_have_the_biases_of_their_columns() -> None:
    biases = new_biases(3, 100, 5)
    first, last = (biases.of_columns(own, 64) for own in (slice(0, 64), slice(64, 128)))
    assert (first.down_EO is biases.down_EO, last.down_EO) == (True, None)
    for found_EF, other_EF, bias_EF in zip(first[:2], last[:2], biases[:2], strict=True):
        assert torch.equal(torch.cat((found_EF, other_EF), 1), functional.pad(bias_EF, (0, 28)))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("count", "chosen", "columns"), [(5, 4, 2880), (8, 8, 64), (3, 1, 640)])
@pytest.mark.parametrize("engine", AVAILABLE)
def test_largest_codes_fit_their_sums(
    engine: str, count: int, chosen: int, columns: int, biased: bool
) -> None:
    """All codes are 12, all activations 127, and all parts of a sum are alike, so that no sum is larger for its parts'
    squares."""
    shape = Shape(count, chosen, 16, columns, MXFP4)
    mixture = mixture_of(largest_codes, count, shape.hidden, columns, MXFP4)
    router = Router(torch.zeros(count, shape.hidden), chosen, normalised=True)
    made, x_TH = Block(shape, mixture, None, router, None), torch.full((40, shape.hidden), 0.7)
    kinds, exponent, units = set(), -12, columns // UNIT + biased
    for threads in (1, 2, 3):
        with opened(engine, INT8, threads) as linear:
            assert linear.pool is not None
            of_unit_TH = (
                replace(made, biases=None).of_units(0, 1).fused(linear.pool, Grid(exponent)).run(x_TH).sums_TO
            )
            if biased:  # as large as another unit
                made = replace(made, biases=of_down(shape, of_unit_TH[0, 0].item() * 2.0**exponent))
            expected_TH = made.defined(x_TH[:1], exponent, linear.pool).sums_TO.expand(40, -1)
            for part in (0.3, 0.8, 0.98, 1.02, 1.2, 1.38, 1.9, 3.0):
                grid = Grid(exponent, round(of_unit_TH[0, 0].item() * units / part))
                for tokens in (1, 40):
                    found_TH = made.fused(linear.pool, grid).run(x_TH[:tokens]).sums_TO
                    assert torch.equal(found_TH.long(), expected_TH[:tokens])
                    assert found_TH.dtype is torch.int64 or found_TH.abs().max() <= grid.most
                    kinds.add(found_TH.dtype)
    assert kinds == {torch.int32, torch.int64}


def of_down(shape: Shape, bias: float) -> ExpertBiases:
    none_EF = torch.zeros(shape.count, shape.columns)
    return ExpertBiases(none_EF, none_EF, torch.full((shape.count, shape.hidden), bias))


@pytest.mark.parametrize("most", [Grid(0).most, 0])
def test_stack_has_layers_of_experts_beside_dense_ones(linear: Linear, most: int) -> None:
    pool, grid = linear.pool, Grid(-14, most)
    assert pool is not None
    cache = new_cache("f32")
    dense = blocks(linear, cache)
    shapes = (
        Shape(6, 2, HIDDEN, 150, UNLIKE),
        Shape(6, 2, HIDDEN, 150, MXFP4, Activation.GPT_OSS, "biased", normed=True, biased=True),
    )
    mixtures = [block(shape, seed).fused(pool, grid) for seed, shape in enumerate(shapes)]
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
                if isinstance(other, FusedExperts):
                    add_sums(x_TH, other.run(x_TH).sums_TO, grid, pool, one)
                else:
                    add_sums(x_TH, other.run(x_TH), STACK_GRID, pool, one)
        assert found_TH.isfinite().all()
        assert torch.equal(found_TH, x_TH)


@pytest.mark.parametrize("most", [STACK_GRID.most, 0])
def test_stack_has_experts_beside_an_ffn(linear: Linear, most: int) -> None:
    pool, grid = linear.pool, Grid(STACK_GRID.exponent, most)
    assert pool is not None
    cache = new_cache("f32")
    shape = Shape(6, 2, HIDDEN, 150, UNLIKE, Activation.GELU_TANH, "scaled", normed=True)
    layers = [
        (attention, FusedPair(ffn, block(shape, seed).fused(pool, grid)))
        for seed, (attention, ffn) in enumerate(blocks(linear, cache))
    ]
    parts = torch.rand(HIDDEN), torch.rand(HIDDEN)
    end = BlockEnd(None, torch.rand(HIDDEN), EPS, scale=0.7, parts=parts)
    stack = FusedLayers(layers, pool, [(BlockEnd(), end)] * len(layers))
    together, alone = (cache.table(80) for _ in range(2))
    for start, tokens in ((0, 40), (40, 1)):
        turned = Rotation(*rotation(start, tokens, WIDTH))
        x_TH = torch.randn(tokens, HIDDEN)
        found_TH = x_TH.clone()
        stack.run(found_TH, cache.spans((tokens, start, together)), [turned])
        for attention, (ffn, mixture) in layers:
            sums_TH = attention.run(x_TH, cache.spans((tokens, start, alone)), turned)
            add_sums(x_TH, sums_TH, STACK_GRID, pool)
            add_sums(x_TH, torch.cat((ffn.run(x_TH), mixture.run(x_TH).sums_TO)), grid, pool, end)
        assert found_TH.isfinite().all()
        assert torch.equal(found_TH, x_TH)
    with pytest.raises(ValueError, match="a block of 2 sums has an end of 1"):
        FusedLayers(layers, pool)


@pytest.mark.parametrize("name", ["many", "gpt_oss"])
@pytest.mark.parametrize("engine", AVAILABLE)
def test_rows_without_numbers_spoil_no_others(engine: str, name: str) -> None:
    made = block(SHAPES[name])
    with opened(engine, INT8, 2) as linear:
        assert linear.pool is not None
        run = made.fused(linear.pool, GRIDS["narrow"]).run
        x_TH = torch.randn(40, made.shape.hidden)
        expected_TH = run(x_TH).sums_TO
        x_TH[3, 5], x_TH[20, 7] = torch.nan, torch.inf
        found_TH = run(x_TH).sums_TO
        lost_T = (found_TH == NOT_A_NUMBER).all(1)
        assert lost_T.nonzero().flatten().tolist() == [3, 20]
        assert torch.equal(found_TH[~lost_T], expected_TH[~lost_T].long())


@pytest.mark.parametrize("engine", AVAILABLE)
def test_row_bits_do_not_depend_on_rows_that_share_experts(engine: str) -> None:
    """All rows choose the same experts, which so have more rows than a tile and a batch."""
    shape = Shape(6, 2, 48, 640, activation=Activation.GELU_TANH, normed=True, biased=True)
    x_TH = torch.randn(600, shape.hidden)
    with opened(engine, INT8, 2) as linear:
        assert linear.pool is not None
        made = block(shape)
        x_TH[:, 0], made.router.weights_EH[:2, 0] = 3, 100  # all choose the first two
        unnormed = replace(made, norm_H=None, router=made.router._replace(norm_H=None))
        for one in (made, unnormed):
            fused = one.fused(linear.pool, GRIDS["narrow"])
            found_TH = fused.run(x_TH).sums_TO
            for rows in (slice(1), slice(3, 5), slice(77, 130), slice(599, 600)):
                assert torch.equal(found_TH[rows], fused.run(x_TH[rows]).sums_TO)


def test_experts_that_do_not_fit_are_refused() -> None:
    made = block(Shape(5, 3, 64, 128, FLOATS, biased=True))
    nbytes, router, biases = made.mixture.expert_nbytes, made.router, made.biases
    assert biases is not None
    assert made.norm_H is not None
    with opened(AVAILABLE[-1], INT8) as linear:
        pool = linear.pool
        assert pool is not None
        for changed, says in (
            (replace(made, router=Router(torch.zeros(6, 64), 3, True), biases=None), "need"),
            (replace(made, mixture=replace(made.mixture, expert_nbytes=nbytes + 1)), "need"),
            (replace(made, norm_H=made.norm_H[1:]), "norm"),
            (replace(made, router=router._replace(weights_EH=router.weights_EH[:, 1:])), "router"),
            (replace(made, router=router._replace(chosen=7)), "7 of 5"),
            (replace(made, router=router._replace(bias_E=torch.zeros(6))), "router's vector"),
            (replace(made, biases=biases._replace(gate_EF=torch.zeros(5, 127))), "biases"),
            (replace(made, biases=biases._replace(up_EF=torch.zeros(4, 128))), "biases"),
            (replace(made, biases=biases._replace(down_EO=torch.zeros(5, 65))), "biases"),
            (made.of_units(0, 0), "no columns"),
        ):
            with pytest.raises(ValueError, match=says):
                changed.fused(pool, Grid(0))
