"""Makes the kernels of `tpiedge bench kernels`, with operands like the engine's operands.

T tokens, H hidden size, F columns of the FFN, N query heads, K KV heads, S positions, d head dimension.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tpiedge.errors import OutOfMemory
from tpiedge.kernels.attention import append_pages, attention_pages, kv_of_heads
from tpiedge.kernels.elementwise import activate, rms_norm, rope, tables
from tpiedge.kernels.experts import FusedExperts, Router
from tpiedge.kernels.ffn import FusedFFN, ffn
from tpiedge.kernels.grid import Grid
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.kv_pages import PageLayout, Span, Spans
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight
from tpiedge.kernels.panels import FORMATS, Codes, PanelFormat, PanelShape
from tpiedge.pack.layout import whole_pages
from tpiedge.units import MIB, counted, format_bytes
from tpiedge.wire.fields import KVPrecision

#: The grid of quantised sums. Outputs are 1 to 1000, so with this grid their sums fit 32 bits.
GRID: Final = Grid(-16)

UNIT = 128
"""Rows of a unit of a quantised matrix."""
EXPERTS, CHOSEN = 128, 8
"""Experts of a mixture, and those of a token, which have as many columns as the FFN."""
EXPERT_UNIT = 64
GROUP = 4
"""Query heads of a KV head."""
POSITIONS = 2048
PAGE_POSITIONS = 64


_EPS = 1e-5
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}

Run = Callable[[Linear, int], object]
"""Runs a kernel on the copy of the operands with this number."""


@dataclass(frozen=True)
class Case:
    """A kernel with its operands, for one number of tokens. `nbytes`: the bytes that a call must move. `operations`:
    the number of a call's multiplications and additions. `streams`: whether the bytes come from memory, not from a
    cache."""

    kernel: str
    shape: str
    precision: str
    tokens: int
    nbytes: int
    operations: int
    int8: bool
    streams: bool
    copies: int
    run: Run

    @property
    def quantised(self) -> bool:
        return self.precision in FORMATS

    @property
    def arithmetic(self) -> Arithmetic:
        return Arithmetic.INT8 if self.int8 else Arithmetic.F32

    def __str__(self) -> str:
        return f"{self.kernel} {self.shape} {self.precision}, {counted(self.tokens, 'token')}"


@dataclass(frozen=True)
class BufferRotation:
    """Makes calls use several copies of the operands in turn. `nbytes`: the wanted size of all copies."""

    nbytes: int  # more than a cache holds

    def copies(self, nbytes: int) -> int:
        return min(32, max(2, -(-self.nbytes // max(1, nbytes))))


def heads_of(hidden: int) -> tuple[int, int, int]:
    """Returns (query heads, KV heads, head width) for a hidden size."""
    heads = max(1, hidden // 128)
    return heads, -(-heads // GROUP), min(128, hidden)


def matrix_nbytes(precision: KVPrecision, rows: int, cols: int, *, transposed: bool) -> int:
    if precision not in FORMATS:
        return rows * cols * {"f32": 4, "bf16": 2}[precision]
    shape = PanelShape(FORMATS[precision], *((cols, UNIT) if transposed else (UNIT, cols)))
    return -(-rows // UNIT) * whole_pages(shape.nbytes)


def check_room(
    kernels: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    precisions: Sequence[KVPrecision],
    tokens: Sequence[int],
    rotation: BufferRotation,
    available_bytes: int,
) -> None:
    """Raises OutOfMemory if a case with all copies of its operands exceeds `available_bytes`."""
    for kernel, (hidden, columns), precision in itertools.product(kernels, shapes, precisions):
        matrices = {"project": 1, "contract": 1, "ffn": 3}.get(kernel, 0)
        own = matrix_nbytes(precision, columns, hidden, transposed=kernel == "contract")
        if kernel == "experts":
            own, matrices = 3 * own * EXPERTS // CHOSEN, 1
        operands = matrices * rotation.copies(own) * own
        if kernel == "attention":
            own = cache_nbytes(hidden, precision)
            operands = rotation.copies(own) * own
        activations = 4 * max(hidden, columns) * (sum(tokens) + 2 * max(tokens))
        whole = operands + activations + rotation.nbytes + 64 * MIB  # for the probes, and what kernels widen
        if whole > available_bytes:
            raise OutOfMemory(
                f"{kernel} {hidden}x{columns} in {precision} takes {format_bytes(whole)} with the copies that keep it "
                f"out of the caches, and {format_bytes(available_bytes)} are free: give smaller --shapes or --tokens, "
                "fewer --kernels or --precisions, or close other programs"
            )


def cache_nbytes(hidden: int, precision: KVPrecision) -> int:
    _, kv_heads, width = heads_of(hidden)
    return 2 * kv_heads * POSITIONS * KVFormat(precision, width).row_nbytes


MakeCase = Callable[[int], Case]


@dataclass(frozen=True)
class _Block:
    hidden: int
    ffn: int
    precision: KVPrecision
    rotation: BufferRotation

    def matrices(self, *, transposed: bool) -> list[Weight]:
        nbytes = matrix_nbytes(self.precision, self.ffn, self.hidden, transposed=transposed)
        return [self._matrix(transposed) for _ in range(self.rotation.copies(nbytes))]

    def _matrix(self, transposed: bool) -> Weight:
        if self.precision in FORMATS:
            return random_panels(FORMATS[self.precision], self.ffn, self.hidden, transposed=transposed)
        return torch.empty(self.ffn, self.hidden, dtype=_DTYPES[self.precision]).uniform_(-0.05, 0.05)

    def case(
        self, kernel: str, tokens: int, moved: tuple[int, int], run: Run, copies: int = 1, shape: str = ""
    ) -> Case:
        of_weights = kernel in _OF_WEIGHTS
        return Case(
            kernel,
            shape or f"{self.hidden}x{self.ffn}",
            self.precision if of_weights or kernel == "attention" else "f32",
            tokens,
            *moved,
            int8=self.precision in FORMATS and of_weights,
            streams=copies > 1,
            copies=copies,
            run=run,
        )


def random_panels(
    form: PanelFormat, rows: int, cols: int, *, transposed: bool, per_unit: int = UNIT
) -> PanelMatrix:
    shape = PanelShape(form, cols, per_unit) if transposed else PanelShape(form, per_unit, cols)
    units, random = -(-rows // per_unit), np.random.default_rng(0)
    unit_nbytes = whole_pages(shape.nbytes)
    data_UB = torch.randint(0, 256, (units, unit_nbytes), dtype=torch.uint8)
    for unit in range(units):
        count = min(per_unit, rows - unit * per_unit)
        own = PanelShape(form, cols, count) if transposed else PanelShape(form, count, cols)
        data_UB[unit, : own.nbytes] = torch.from_numpy(_random_codes(own, random).panels(own))
    return PanelMatrix(data_UB.flatten(), form, rows, cols, per_unit, unit_nbytes, transposed)


def _random_codes(shape: PanelShape, random: np.random.Generator) -> Codes:
    codes = random.integers(0, 1 << shape.format.bits, (shape.outputs, shape.inputs), np.uint8)
    scales = np.zeros((shape.outputs, shape.groups), shape.format.scales.dtype)
    for name in scales.dtype.names or ():
        halves = scales[name].dtype == np.float16
        scales[name] = 0.0015 if halves else random.integers(1, 16, scales[name].shape)
    return Codes(shape.format, codes, scales)


def cases_of(
    kernels: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    precisions: Sequence[KVPrecision],
    tokens: Sequence[int],
    rotation: BufferRotation,
) -> Iterator[Callable[[], list[Case]]]:
    """Yields functions. Each function makes cases that share operands."""
    for (hidden, columns), precision, kernel in itertools.product(shapes, precisions, kernels):
        # Elementwise kernels are f32 only, like activations.
        wanted = kernel in (*_OF_WEIGHTS, "attention") or precision == precisions[0]
        if precision in FORMATS if kernel == "experts" else wanted:
            block = _Block(hidden, columns, precision, rotation)
            yield functools.partial(_cases, kernel, block, tokens)


def _cases(kernel: str, block: _Block, tokens: Sequence[int]) -> list[Case]:
    if kernel in _ELEMENTWISE:
        return [_ELEMENTWISE[kernel](block, count) for count in tokens]
    make = _WITH_OPERANDS[kernel](block)
    return [make(count) for count in tokens if kernel != "attention" or count <= POSITIONS]


def _product(kernel: str, block: _Block) -> MakeCase:
    projects = kernel == "project"
    weights = block.matrices(transposed=not projects)

    def of(tokens: int) -> Case:
        x_TI = torch.randn(tokens, block.hidden if projects else block.ffn)

        def run(linear: Linear, copy: int) -> object:
            weight = weights[copy]
            return linear.project(x_TI, weight) if projects else linear.contract(x_TI, weight, GRID)

        nbytes = _nbytes(weights[0]) + 4 * tokens * (block.hidden + block.ffn)
        return block.case(kernel, tokens, (nbytes, 2 * tokens * block.hidden * block.ffn), run, len(weights))

    return of


def _ffn(block: _Block) -> MakeCase:
    gates, ups, downs = (block.matrices(transposed=transposed) for transposed in (False, False, True))
    norm_H = torch.ones(block.hidden)

    def of(tokens: int) -> Case:
        x_TH = torch.randn(tokens, block.hidden)

        def run(linear: Linear, copy: int) -> object:
            matrices = gates[copy], ups[copy], downs[copy]
            if linear.pool is not None and linear.arithmetic is Arithmetic.INT8:
                gate, up, down = (w for w in matrices if isinstance(w, PanelMatrix))
                return FusedFFN(norm_H, _EPS, (gate, up, down), linear.pool, GRID).run(x_TH)
            gate_FH, up_FH, down_FO = (w for w in matrices if isinstance(w, Tensor))
            return ffn(x_TH, norm_H, _EPS, gate_FH, up_FH, down_FO, linear)

        nbytes = _nbytes(gates[0]) + _nbytes(ups[0]) + _nbytes(downs[0]) + 8 * tokens * block.hidden
        return block.case("ffn", tokens, (nbytes, 6 * tokens * block.hidden * block.ffn), run, len(gates))

    return of


def _experts(block: _Block) -> MakeCase:
    columns, form = max(1, block.ffn // CHOSEN), FORMATS[block.precision]
    found = [
        random_panels(form, columns, block.hidden, transposed=transposed, per_unit=EXPERT_UNIT)
        for transposed in (False, False, True)
    ]
    expert_B = torch.cat([w.data_B.view(w.units, -1) for w in found], 1).flatten()
    *places, unit_nbytes = itertools.accumulate((w.unit_nbytes for w in found), initial=0)

    def layer() -> tuple[Tensor, tuple[PanelMatrix, ...]]:
        data_B = expert_B.repeat(EXPERTS)
        matrices = (
            replace(w, data_B=data_B[place:], unit_nbytes=unit_nbytes)
            for w, place in zip(found, places, strict=True)
        )
        return torch.randn(EXPERTS, block.hidden), tuple(matrices)

    layers = [layer() for _ in range(block.rotation.copies(EXPERTS * expert_B.numel()))]
    norm_H = torch.ones(block.hidden)

    def of(tokens: int) -> Case:
        x_NTH = torch.randn(32, tokens, block.hidden)  # so that the choices vary

        def run(linear: Linear, copy: int) -> object:
            router_EH, (gate, up, down) = layers[copy % len(layers)]
            if linear.pool is None:
                raise ValueError("quantised experts need the native kernels")
            router, nbytes = Router(router_EH, CHOSEN, normalised=True), expert_B.numel()
            fused = FusedExperts(norm_H, _EPS, router, (gate, up, down), nbytes, linear.pool, GRID)
            return fused.run(x_NTH[copy]).sums_TO

        touched = EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** tokens)  # on average
        nbytes = round(touched * expert_B.numel()) + 4 * EXPERTS * block.hidden + 8 * tokens * block.hidden
        operations = 2 * tokens * block.hidden * (3 * CHOSEN * columns + EXPERTS)
        return block.case("experts", tokens, (nbytes, operations), run, len(x_NTH))

    return of


def _attention(block: _Block) -> MakeCase:
    heads, kv_heads, width = heads_of(block.hidden)
    stored = KVFormat(block.precision, width)
    nbytes = cache_nbytes(block.hidden, block.precision)
    count = block.rotation.copies(nbytes)
    layout, tables = _pages(stored, kv_heads, count)
    kv_of_head = kv_of_heads(0, heads, GROUP)

    def of(tokens: int) -> Case:
        q_TNd = torch.randn(tokens, heads, width)
        spans = [Spans([Span(tokens, POSITIONS - tokens, table)], PAGE_POSITIONS) for table in tables]

        def run(linear: Linear, copy: int) -> object:
            return attention_pages(q_TNd, spans[copy], layout, kv_of_head, pool=linear.pool)

        seen = tokens * POSITIONS - tokens * (tokens - 1) // 2
        moved = nbytes + 8 * q_TNd.numel(), 4 * seen * heads * width
        return block.case("attention", tokens, moved, run, count, f"{heads}/{kv_heads}x{width}")

    return of


def _pages(stored: KVFormat, kv_heads: int, count: int) -> tuple[PageLayout, list[NDArray[np.int64]]]:
    head_bytes = whole_pages(2 * PAGE_POSITIONS * stored.row_nbytes)
    pages = POSITIONS // PAGE_POSITIONS
    store_PB = torch.empty(count * pages, kv_heads * head_bytes, dtype=torch.uint8)
    layout = PageLayout(stored, kv_heads, PAGE_POSITIONS, 0, store_PB)
    numbers = np.random.default_rng(0).permutation(len(store_PB)).reshape(count, pages)
    tables = [store_PB.data_ptr() + store_PB.stride(0) * of_one.astype(np.int64) for of_one in numbers]
    with Linear.create(Arithmetic.F32, 1) as linear:
        for table in tables:
            k_SKd, v_SKd = (torch.randn(POSITIONS, kv_heads, stored.width) for _ in "kv")
            spans = Spans([Span(POSITIONS, 0, table)], PAGE_POSITIONS)
            append_pages(k_SKd, v_SKd, spans, layout, linear.pool)
    return layout, tables


def _rms_norm(block: _Block, tokens: int) -> Case:
    weight_H, x_TH = torch.ones(block.hidden), torch.randn(tokens, block.hidden)
    moved = 8 * x_TH.numel(), 4 * x_TH.numel()

    def run(linear: Linear, _copy: int) -> object:
        return rms_norm(x_TH, weight_H, _EPS, linear.pool)

    return block.case("rms_norm", tokens, moved, run, shape=str(block.hidden))


def _rope(block: _Block, tokens: int) -> Case:
    heads, _, width = heads_of(block.hidden)
    x_TNd = torch.randn(tokens, heads, width)
    cos_Td, sin_Td = tables(torch.arange(tokens), torch.rand(width // 2), 1.0)
    moved = 8 * x_TNd.numel(), 3 * x_TNd.numel()

    def run(linear: Linear, _copy: int) -> object:
        return rope(x_TNd, cos_Td, sin_Td, linear.pool)

    return block.case("rope", tokens, moved, run, shape=f"{heads}x{width}")


def _swiglu(block: _Block, tokens: int) -> Case:
    # torch's swiglu overwrites the gate, which must not become denormal: this gate grows.
    gate_TF, up_TF = (torch.full((tokens, block.ffn), value) for value in (3.0, 2.0))
    moved = 12 * gate_TF.numel(), 5 * gate_TF.numel()

    def run(linear: Linear, _copy: int) -> object:
        return activate(gate_TF, up_TF, pool=linear.pool)

    return block.case("swiglu", tokens, moved, run, shape=str(block.ffn))


_OF_WEIGHTS = ("project", "contract", "ffn", "experts")

_WITH_OPERANDS: dict[str, Callable[[_Block], MakeCase]] = {
    "project": functools.partial(_product, "project"),
    "contract": functools.partial(_product, "contract"),
    "ffn": _ffn,
    "experts": _experts,
    "attention": _attention,
}
_ELEMENTWISE = {"rms_norm": _rms_norm, "rope": _rope, "swiglu": _swiglu}


def _nbytes(weight: Weight) -> int:
    if isinstance(weight, Tensor):
        return weight.numel() * weight.itemsize
    return weight.data_B.numel()
