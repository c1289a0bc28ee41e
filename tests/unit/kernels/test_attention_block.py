"""The fused attention block against its parts, one call after the other, in all its variants."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.paged import PagedCache
from tests.unit.kernels.panel_reference import share_of
from tests.unit.kernels.test_linear import opened
from tests.unit.kernels.test_stack import EPS, GRID, HIDDEN, matrix, rotation
from tpiedge.kernels.attention import append_pages, attention_pages
from tpiedge.kernels.attention_block import FusedAttention
from tpiedge.kernels.elementwise import Rotation, rms_norm, rope
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.kv_pages import Spans
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.wire.fields import KVPrecision

HEADS, KV_HEADS, BEFORE, TOKENS = 4, 2, 70, 3
KV_OF_HEAD = (0, 0, 1, 1)


@dataclass(frozen=True)
class Variant:
    width: int = 24
    kv: KVPrecision = "f32"
    projections: int = 3
    normed: bool = True
    head_norms: bool = True
    value_norm: bool = False
    biased: bool = False
    #: Heads of all nodes before the node's own.
    others: tuple[int, int] | None = None
    rotated: int | None = None
    #: Columns whose angles are not zero.
    turned: int | None = None
    window: int | None = None
    scale: float | None = None
    cap: float = 0.0
    factors: bool = False
    sinks: bool = False


VARIANTS = {
    "plain": Variant(),
    "no norms": Variant(normed=False, head_norms=False),
    "keys are values": Variant(projections=2, value_norm=True, kv="bf16"),
    "keys are values without norms": Variant(projections=2, head_norms=False, biased=True),
    "keys of an earlier layer": Variant(projections=1, window=20, kv="q8"),
    "all heads at once": Variant(others=(2, 1), biased=True, normed=False),
    "all heads at once, keys are values": Variant(others=(1, 3), projections=2, value_norm=True),
    "all heads at once, keys of an earlier layer": Variant(others=(1, 0), projections=1),
    "capped": Variant(cap=2.0, scale=1.0, window=33, value_norm=True, kv="q4"),
    "sinks": Variant(sinks=True, window=33, biased=True, kv="bf16"),
    "factors": Variant(factors=True, rotated=6),
    "factors without rotation": Variant(factors=True, rotated=0, head_norms=False),
    "values have a norm": Variant(width=256, value_norm=True, window=33, kv="bf16"),
    "values have a norm, proportional rotation": Variant(
        width=512, value_norm=True, turned=128, projections=2
    ),
    **{f"wide, {kv}": Variant(width=512, kv=kv, rotated=128) for kv in ("f32", "bf16", "q8", "q4")},
}


class Block:
    """Parameters of a variant, and two caches with the same content."""

    def __init__(self, of: Variant) -> None:
        torch.manual_seed(1)
        self.of, width, others = of, of.width, of.others or (0, 0)
        heads, kv_heads = HEADS + 2 * others[0], KV_HEADS + 2 * others[1]
        self.q, self.k = matrix(heads, width, 4, False), matrix(kv_heads, width, 8, False)
        self.v, self.o = matrix(KV_HEADS, width, 4, False), matrix(HEADS, width, 8, True)
        self.norm = torch.rand(HIDDEN) + 0.5 if of.normed else None
        whole = of.others is not None
        q_width, k_width = (heads * width, kv_heads * width) if whole else (width, width)
        self.norms = [torch.rand(count) + 0.5 if of.head_norms else None for count in (q_width, k_width)]
        self.value_norm = torch.rand(width) + 0.5 if of.value_norm else None
        rows = self.q.rows, self.k.rows, self.v.rows
        self.biases = [torch.randn(count) if of.biased else None for count in rows]
        self.x, self.factor_T = torch.randn(TOKENS, HIDDEN), torch.rand(TOKENS) + 0.5 if of.factors else None
        self.rotation = rotation(BEFORE, TOKENS, width if of.rotated is None else of.rotated, of.turned)
        self.sinks = torch.randn(HEADS) * 2 if of.sinks else None
        self.past = torch.randn(2, BEFORE + TOKENS, KV_HEADS, width)

    def cache(self, linear: Linear) -> tuple[PagedCache, Spans]:
        cache = PagedCache(KVFormat(self.of.kv, self.of.width), KV_HEADS)
        table = cache.table(BEFORE + TOKENS)
        append_pages(*self.past, cache.spans((BEFORE + TOKENS, 0, table)), cache.layout, linear.pool)
        return cache, cache.spans((TOKENS, BEFORE, table))

    @property
    def matrices(self) -> tuple[PanelMatrix, PanelMatrix | None, PanelMatrix | None, PanelMatrix]:
        k, v = self.k if self.of.projections > 1 else None, self.v if self.of.projections > 2 else None
        return self.q, k, v, self.o

    def fused(self, cache: PagedCache, linear: Linear, of: Variant) -> FusedAttention:
        assert linear.pool is not None
        biases = [bias if at < of.projections else None for at, bias in enumerate(self.biases)]
        return FusedAttention(
            self.matrices,
            GRID,
            self.norm,
            EPS,
            KV_OF_HEAD,
            cache.layout,
            linear.pool,
            biases=(biases[0], biases[1], biases[2]),
            head_norms_d=(self.norms[0], self.norms[1] if of.projections > 1 else None),
            value_norm_d=self.value_norm,
            own_heads=of.others,
            sinks_n=self.sinks,
            window=of.window,
            scale=of.scale,
            cap=of.cap,
            rotated=of.rotated,
        )

    def by_parts(self, cache: PagedCache, spans: Spans, linear: Linear) -> Tensor:
        of, pool = self.of, linear.pool
        h = self.x if self.norm is None else rms_norm(self.x, self.norm, EPS, pool)
        products = zip((self.q, self.k, self.v), self.biases, strict=True)
        q, k, v = (linear.project(h, w) + (0 if bias is None else bias) for w, bias in products)
        first_q, first_k = of.others or (0, 0)
        q_TNd, raw_TKd = self._heads(q, first_q, HEADS), self._heads(k, first_k, KV_HEADS)
        v_TKd = self._heads(v, 0, KV_HEADS) if of.projections == 3 else raw_TKd
        if self.value_norm is not None:
            v_TKd = rms_norm(v_TKd, self.value_norm, EPS, pool)
        k_TKd = raw_TKd
        if self.norms[0] is not None and self.norms[1] is not None:
            if of.others is None:
                q_TNd, k_TKd = (
                    rms_norm(q_TNd, self.norms[0], EPS, pool),
                    rms_norm(k_TKd, self.norms[1], EPS, pool),
                )
            else:
                q_TNd = self._heads(rms_norm(q, self.norms[0], EPS, pool), first_q, HEADS)
                k_TKd = self._heads(rms_norm(k, self.norms[1], EPS, pool), first_k, KV_HEADS)
        q_TNd = rope(q_TNd, *self.rotation, pool, self.factor_T)
        if of.projections > 1:
            append_pages(rope(k_TKd, *self.rotation, pool), v_TKd, spans, cache.layout, pool)
        out = attention_pages(
            q_TNd, spans, cache.layout, KV_OF_HEAD, window=of.window, scale=of.scale, cap=of.cap,
            sinks_N=self.sinks, pool=pool,
        )  # fmt: skip
        return linear.contract(out.flatten(1), self.o, GRID)

    def _heads(self, x: Tensor, first: int, count: int) -> Tensor:
        return x.view(TOKENS, -1, self.of.width)[:, first : first + count]


@pytest.fixture(params=AVAILABLE)
def int8(request: pytest.FixtureRequest) -> Iterator[Linear]:
    with opened(request.param, Arithmetic.INT8, 2) as linear:
        yield linear


@pytest.mark.parametrize("name", VARIANTS)
def test_fused_attention_equals_its_parts(int8: Linear, name: str) -> None:
    block = Block(VARIANTS[name])
    (own, spans), (other, other_spans) = block.cache(int8), block.cache(int8)
    found = block.fused(own, int8, block.of).run(block.x, spans, Rotation(*block.rotation, block.factor_T))
    assert torch.equal(found, block.by_parts(other, other_spans, int8))
    tables = (next(iter(one))[1].table for one in (spans, other_spans))
    rows = (cache.rows(table, BEFORE + TOKENS) for cache, table in zip((own, other), tables, strict=True))
    assert all(torch.equal(*pair) for pair in zip(*rows, strict=True))


@pytest.mark.parametrize(
    "changes",
    [
        {"projections": 2},
        {"value_norm": True},
        {"turned": 6},
        {"scale": 1.0},
        {"cap": 2.0},
        {"window": 20},
        {"factors": True},
        {"sinks": True},
        {"rotated": 6},
        {"normed": False},
        {"head_norms": False},
    ],
    ids=str,
)
def test_every_variant_changes_the_sums(int8: Linear, changes: dict[str, object]) -> None:
    results = []
    for of in (Variant(), replace(Variant(), **changes)):
        block = Block(of)
        cache, spans = block.cache(int8)
        results.append(
            block.fused(cache, int8, of).run(block.x, spans, Rotation(*block.rotation, block.factor_T))
        )
    assert not torch.equal(*results)


def test_impossible_attention_blocks_are_refused(int8: Linear) -> None:
    block = Block(Variant())
    cache, _ = block.cache(int8)
    q, k, v, o = block.q, block.k, block.v, block.o
    pool = int8.pool
    assert pool is not None

    def refused(words: str, matrices: object = (q, k, v, o), **changes: object) -> None:
        with pytest.raises(ValueError, match=words):
            FusedAttention(matrices, GRID, None, EPS, KV_OF_HEAD, cache.layout, pool, **changes)

    refused("for 2 KV heads", (q, None, v, o))
    refused("for 2 KV heads", (q, q, v, o))
    refused("for 2 KV heads", own_heads=(1, 0))
    refused("for 2 KV heads", own_heads=(0, -1))
    refused("a bias", (q, None, None, o), biases=(None, torch.zeros(k.rows), None))
    refused("norm", (q, None, None, o), head_norms_d=(None, torch.zeros(24)))
    refused("norm", own_heads=(0, 0), head_norms_d=(torch.zeros(24), None))
    refused("norm", value_norm_d=torch.zeros(23))
    refused("sinks", sinks_n=torch.zeros(HEADS + 1))
    refused("window", window=0)
    refused("capped", cap=math.nan)
    refused("rotated", rotated=5)


def test_norms_over_all_heads_keep_bits_for_every_split(int8: Linear) -> None:
    whole = Block(replace(Variant(), others=(0, 0)))
    cache, spans = whole.cache(int8)
    expected = whole.fused(cache, int8, whole.of).run(whole.x, spans, Rotation(*whole.rotation))
    assert int8.pool is not None
    total = torch.zeros_like(expected)
    for kv in range(KV_HEADS):
        own = PagedCache(KVFormat("f32", 24), 1)
        table = own.table(BEFORE + TOKENS)
        append_pages(
            *whole.past[:, :, kv : kv + 1], own.spans((BEFORE + TOKENS, 0, table)), own.layout, int8.pool
        )
        v, o = share_of(whole.v, kv, kv + 1), share_of(whole.o, 2 * kv, 2 * kv + 2)
        fused = FusedAttention(
            (whole.q, whole.k, v, o),
            GRID,
            whole.norm,
            EPS,
            (0, 0),
            own.layout,
            int8.pool,
            head_norms_d=(whole.norms[0], whole.norms[1]),
            own_heads=(2 * kv, kv),
        )
        total += fused.run(whole.x, own.spans((TOKENS, BEFORE, table)), Rotation(*whole.rotation))
    assert torch.equal(total, expected)
