"""The kernels with operands as the engine has them: what `tpiedge bench kernels` measures.

T tokens, H hidden size, F columns of the FFN, N query heads, K KV heads, S positions, d head dimension.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.attention import append_pages, attention_pages, kv_of_heads
from tpiedge.kernels.ffn import ffn
from tpiedge.kernels.grid import Grid
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.kv_pages import PageLayout, Span, Spans
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.norm import rms_norm
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight
from tpiedge.kernels.panels import PanelShape, join_panels, split_panels
from tpiedge.kernels.rope import rope, tables
from tpiedge.kernels.swiglu import swiglu
from tpiedge.lab.bench.kernel_memory import (
    BITS,
    GROUP,
    PAGE_POSITIONS,
    POSITIONS,
    UNIT,
    Rotation,
    cache_nbytes,
    heads_of,
    matrix_nbytes,
)
from tpiedge.pack.layout import whole_pages
from tpiedge.units import counted
from tpiedge.wire.fields import KVPrecision

#: Of the sums of quantised matrices, which fit 32 bits then: outputs are 1 to 1000.
GRID: Final = Grid(-16)

_EPS = 1e-5
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}

Run = Callable[[Linear, int], object]
"""With the threads of a Linear, on the copy of the operands of this number."""


@dataclass(frozen=True)
class Case:
    """One kernel at one number of tokens.

    `nbytes`: read and written once; `operations`: multiplications and additions; `int8`: of 8-bit numbers.
    `streams`: whether the bytes come from memory; activations alone are in a cache, as they are in a step.
    """

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
        """Whether weights, keys or values are: torch computes nothing with those."""
        return self.precision in BITS

    @property
    def arithmetic(self) -> Arithmetic:
        return Arithmetic.INT8 if self.int8 else Arithmetic.F32

    def __str__(self) -> str:
        return f"{self.kernel} {self.shape} {self.precision}, {counted(self.tokens, 'token')}"


@dataclass(frozen=True)
class _Wanted:
    """One shape of a model's block, one precision."""

    hidden: int
    ffn: int
    precision: KVPrecision
    tokens: Sequence[int]
    rotation: Rotation

    @property
    def shape(self) -> str:
        return f"{self.hidden}x{self.ffn}"

    @property
    def int8(self) -> bool:
        return self.precision in BITS

    def matrices(self, rows: int, cols: int, *, transposed: bool) -> list[Weight]:
        """Copies of a random matrix."""
        nbytes = matrix_nbytes(self.precision, rows, cols, transposed=transposed)
        return [self._matrix(rows, cols, transposed) for _ in range(self.rotation.copies(nbytes))]

    def _matrix(self, rows: int, cols: int, transposed: bool) -> Weight:
        if self.int8:
            return random_panels(BITS[self.precision], rows, cols, transposed=transposed)
        return torch.empty(rows, cols, dtype=_DTYPES[self.precision]).uniform_(-0.05, 0.05)

    def case(
        self,
        kernel: str,
        tokens: int,
        nbytes: int,
        operations: int,
        run: Run,
        copies: int = 1,
        shape: str = "",
    ) -> Case:
        of_weights = kernel in _OF_WEIGHTS
        return Case(
            kernel,
            shape or self.shape,
            self.precision if of_weights or kernel == "attention" else "f32",
            tokens,
            nbytes,
            operations,
            int8=self.int8 and of_weights,
            streams=copies > 1,
            copies=copies,
            run=run,
        )


def random_panels(bits: int, rows: int, cols: int, *, transposed: bool) -> PanelMatrix:
    """A quantised matrix of random codes and scales, in units of 128 rows as an FFN's."""
    shape = PanelShape(bits, cols, UNIT) if transposed else PanelShape(bits, UNIT, cols)
    units, random = -(-rows // UNIT), np.random.default_rng(0)
    unit_nbytes = whole_pages(shape.nbytes)
    data_UB = torch.randint(0, 256, (units, unit_nbytes), dtype=torch.uint8)
    for unit in range(units):
        count = min(UNIT, rows - unit * UNIT)
        own = PanelShape(bits, cols, count) if transposed else PanelShape(bits, count, cols)
        panels_PB = data_UB[unit, : own.nbytes].view(own.panels, own.panel_nbytes).numpy()
        scales_PGr, codes_PB = split_panels(panels_PB, own)
        scales_PGr[:] = random.uniform(0.001, 0.002, scales_PGr.shape)
        join_panels(scales_PGr, codes_PB, own, panels_PB)
    return PanelMatrix(data_UB.flatten(), bits, rows, cols, UNIT, unit_nbytes, transposed)


def cases_of(
    kernels: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    precisions: Sequence[KVPrecision],
    tokens: Sequence[int],
    rotation: Rotation,
) -> Iterator[Callable[[], list[Case]]]:
    """Makers of cases that share operands: gigabytes, some of them."""
    for hidden, columns in shapes:
        for precision in precisions:
            wanted = _Wanted(hidden, columns, precision, tokens, rotation)
            for kernel in kernels:
                if _is_measured(kernel, precision, precisions):
                    yield functools.partial(KERNELS[kernel], wanted)


def case_count(
    kernels: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    precisions: Sequence[KVPrecision],
    tokens: Sequence[int],
) -> int:
    """How many cases the makers of `cases_of` make in all."""
    return len(shapes) * sum(
        len(_attended(tokens) if kernel == "attention" else tokens)
        for precision in precisions
        for kernel in kernels
        if _is_measured(kernel, precision, precisions)
    )


def _is_measured(kernel: str, precision: KVPrecision, precisions: Sequence[KVPrecision]) -> bool:
    """Activations are f32, whatever the weights are: they are measured with the first precision alone."""
    return kernel in _OF_WEIGHTS or kernel == "attention" or precision == precisions[0]


def _attended(tokens: Sequence[int]) -> list[int]:
    return [count for count in tokens if count <= POSITIONS]


def _project(wanted: _Wanted) -> list[Case]:
    weights = wanted.matrices(wanted.ffn, wanted.hidden, transposed=False)
    return [_product(wanted, "project", weights, tokens) for tokens in wanted.tokens]


def _contract(wanted: _Wanted) -> list[Case]:
    weights = wanted.matrices(wanted.ffn, wanted.hidden, transposed=True)
    return [_product(wanted, "contract", weights, tokens) for tokens in wanted.tokens]


def _product(wanted: _Wanted, kernel: str, weights: list[Weight], tokens: int) -> Case:
    projects = kernel == "project"
    x_TI = torch.randn(tokens, wanted.hidden if projects else wanted.ffn)

    def run(linear: Linear, copy: int) -> object:
        weight = weights[copy]
        return linear.project(x_TI, weight) if projects else linear.contract(x_TI, weight, GRID)

    nbytes = _nbytes(weights[0]) + 4 * tokens * (wanted.hidden + wanted.ffn)
    operations = 2 * tokens * wanted.hidden * wanted.ffn
    return wanted.case(kernel, tokens, nbytes, operations, run, len(weights))


def _ffn(wanted: _Wanted) -> list[Case]:
    gates, ups, downs = (
        wanted.matrices(wanted.ffn, wanted.hidden, transposed=transposed)
        for transposed in (False, False, True)
    )
    norm_H = torch.ones(wanted.hidden)

    def of(tokens: int) -> Case:
        x_TH = torch.randn(tokens, wanted.hidden)

        def run(linear: Linear, copy: int) -> object:
            return ffn(x_TH, norm_H, _EPS, gates[copy], ups[copy], downs[copy], linear, grid=GRID)

        nbytes = _nbytes(gates[0]) + _nbytes(ups[0]) + _nbytes(downs[0]) + 8 * tokens * wanted.hidden
        operations = 6 * tokens * wanted.hidden * wanted.ffn
        return wanted.case("ffn", tokens, nbytes, operations, run, len(gates))

    return [of(tokens) for tokens in wanted.tokens]


def _attention(wanted: _Wanted) -> list[Case]:
    """The last tokens of 2048 positions; four query heads for each KV head."""
    heads, kv_heads, width = heads_of(wanted.hidden)
    stored = KVFormat(wanted.precision, width)
    nbytes = cache_nbytes(wanted.hidden, wanted.precision)
    count = wanted.rotation.copies(nbytes)
    layout, tables = _pages(stored, kv_heads, count)
    kv_of_head = kv_of_heads(0, heads, GROUP)

    def of(tokens: int) -> Case:
        q_TNd = torch.randn(tokens, heads, width)
        spans = [Spans([Span(tokens, POSITIONS - tokens, table)], PAGE_POSITIONS) for table in tables]

        def run(linear: Linear, copy: int) -> object:
            return attention_pages(q_TNd, spans[copy], layout, kv_of_head, pool=linear.pool)

        moved = nbytes + 8 * q_TNd.numel()
        seen = tokens * POSITIONS - tokens * (tokens - 1) // 2
        return wanted.case(
            "attention", tokens, moved, 4 * seen * heads * width, run, count, f"{heads}/{kv_heads}x{width}"
        )

    return [of(tokens) for tokens in _attended(wanted.tokens)]


def _pages(stored: KVFormat, kv_heads: int, count: int) -> tuple[PageLayout, list[NDArray[np.int64]]]:
    """Full caches of so many sequences, whose pages lie among each other as they do after hours of service."""
    value_bytes = PAGE_POSITIONS * stored.row_nbytes
    head_bytes = whole_pages(2 * value_bytes)
    pages = POSITIONS // PAGE_POSITIONS
    store_PB = torch.empty(count * pages, kv_heads * head_bytes, dtype=torch.uint8)
    layout = PageLayout(
        stored, kv_heads, PAGE_POSITIONS, 0, head_bytes, stored.row_nbytes, value_bytes, store_PB
    )
    numbers = np.random.default_rng(0).permutation(len(store_PB)).reshape(count, pages)
    tables = [store_PB.data_ptr() + store_PB.stride(0) * of_one.astype(np.int64) for of_one in numbers]
    with Linear.create(Arithmetic.F32, 1) as linear:
        for table in tables:
            k_SKd, v_SKd = (torch.randn(POSITIONS, kv_heads, stored.width) for _ in "kv")
            spans = Spans([Span(POSITIONS, 0, table)], PAGE_POSITIONS)
            append_pages(k_SKd, v_SKd, spans, layout, linear.pool)
    return layout, tables


def _rms_norm(wanted: _Wanted) -> list[Case]:
    weight_H = torch.ones(wanted.hidden)

    def of(tokens: int) -> Case:
        x_TH = torch.randn(tokens, wanted.hidden)

        def run(linear: Linear, _copy: int) -> object:
            return rms_norm(x_TH, weight_H, _EPS, linear.pool)

        count = x_TH.numel()
        return wanted.case("rms_norm", tokens, 8 * count, 4 * count, run, shape=str(wanted.hidden))

    return [of(tokens) for tokens in wanted.tokens]


def _rope(wanted: _Wanted) -> list[Case]:
    heads, _, width = heads_of(wanted.hidden)

    def of(tokens: int) -> Case:
        x_TNd = torch.randn(tokens, heads, width)
        cos_Td, sin_Td = tables(torch.arange(tokens), torch.rand(width // 2), 1.0)

        def run(linear: Linear, _copy: int) -> object:
            return rope(x_TNd, cos_Td, sin_Td, linear.pool)

        count = x_TNd.numel()
        return wanted.case("rope", tokens, 8 * count, 3 * count, run, shape=f"{heads}x{width}")

    return [of(tokens) for tokens in wanted.tokens]


def _swiglu(wanted: _Wanted) -> list[Case]:
    def of(tokens: int) -> Case:
        # torch's overwrites the gate, which must not become denormal: this one grows.
        gate_TF, up_TF = (torch.full((tokens, wanted.ffn), value) for value in (3.0, 2.0))

        def run(linear: Linear, _copy: int) -> object:
            return swiglu(gate_TF, up_TF, linear.pool)

        count = gate_TF.numel()
        return wanted.case("swiglu", tokens, 12 * count, 5 * count, run, shape=str(wanted.ffn))

    return [of(tokens) for tokens in wanted.tokens]


_OF_WEIGHTS = ("project", "contract", "ffn")

KERNELS: dict[str, Callable[[_Wanted], list[Case]]] = {
    "project": _project,
    "contract": _contract,
    "ffn": _ffn,
    "attention": _attention,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "swiglu": _swiglu,
}


def _nbytes(weight: Weight) -> int:
    if isinstance(weight, Tensor):
        return weight.numel() * weight.itemsize
    return weight.data_B.numel()
