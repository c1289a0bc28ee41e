"""Attention of several sequences at once has the bits of each one alone, wherever its pages are."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.paged import PagedCache
from tests.unit.kernels.test_linear import open_library
from tpiedge.kernels.attention import append_pages, attention_pages, kv_of_heads
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.library import Pool
from tpiedge.wire.fields import KVPrecision

NUMBERS: list[KVPrecision] = ["f32", "bf16"]
STORED: list[KVPrecision] = [*NUMBERS, "q8", "q4"]
WIDTHS = [64, 80, 96, 128]
LENGTHS = (1, 64, 150, 63, 200, 65, 129)
KV = kv_of_heads(0, 8, 4)
KV_HEADS = 2


@pytest.fixture(params=AVAILABLE)
def pools(request: pytest.FixtureRequest) -> Iterator[tuple[Pool, Pool]]:
    """With one thread and with three."""
    one, three = (Pool(open_library(request.param), threads) for threads in (1, 3))
    yield one, three
    one.close()
    three.close()


class Sequences:
    """Numbers of some sequences, and their keys and values in one cache in pages."""

    def __init__(self, precision: KVPrecision, width: int, *, scattered: bool, positions: int = 64) -> None:
        torch.manual_seed(width)
        self.cache = PagedCache(
            KVFormat(precision, width), KV_HEADS, positions=positions, pages=40, scattered=scattered
        )
        self.tables = [self.cache.table(length) for length in LENGTHS]
        self.queries = [2 * torch.randn(length, len(KV), width) for length in LENGTHS]
        self._keys = [torch.randn(length, KV_HEADS, width) for length in LENGTHS]
        self._values = [torch.randn(length, KV_HEADS, width) for length in LENGTHS]

    def attend(
        self, *parts: tuple[int, int, int], window: int | None = None, pool: Pool | None = None
    ) -> Tensor:
        """Appends and attends these parts (sequence, first, last) at once."""
        spans = self.cache.spans(*((last - first, first, self.tables[of]) for of, first, last in parts))
        q, k, v = (
            torch.cat([numbers[of][first:last] for of, first, last in parts])
            for numbers in (self.queries, self._keys, self._values)
        )
        append_pages(k, v, spans, self.cache.layout, pool)
        return attention_pages(q, spans, self.cache.layout, KV, window=window, pool=pool)


def alone(precision: KVPrecision, width: int, window: int | None, pool: Pool | None) -> list[Tensor]:
    """Every sequence at once, in consecutive pages."""
    sequences = Sequences(precision, width, scattered=False)
    return [sequences.attend((of, 0, length), window=window, pool=pool) for of, length in enumerate(LENGTHS)]


@pytest.mark.parametrize("window", [None, 5, 70])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("precision", STORED)
def test_each_row_has_the_bits_that_it_has_alone(
    pools: tuple[Pool, Pool], precision: KVPrecision, width: int, window: int | None
) -> None:
    """All prompts in one call; in chunks, mixed with rows of others; and two spans of one sequence."""
    expected = alone(precision, width, window, pools[0])
    sequences = Sequences(precision, width, scattered=True)
    found = [torch.full_like(rows, torch.nan) for rows in expected]

    def step(*parts: tuple[int, int, int]) -> None:
        out = sequences.attend(*parts, window=window, pool=pools[1])
        sizes = [last - first for _, first, last in parts]
        for (of, first, last), rows in zip(parts, out.split(sizes), strict=True):
            found[of][first:last] = rows

    step((4, 0, 100), (0, 0, 1), (2, 0, 149))
    step((4, 100, 101))
    step((1, 0, 40), (2, 149, 150), (4, 101, 163), (3, 0, 63), (1, 40, 64), (5, 0, 1))
    step((6, 0, 128), (5, 1, 65), (4, 163, 164), (4, 164, 200))
    step((6, 128, 129))
    for of, (mine, wanted) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(mine, wanted), of
    both = Sequences(precision, width, scattered=True, positions=192)
    whole = both.attend(*((of, 0, LENGTHS[of]) for of in range(len(LENGTHS))), window=window, pool=pools[1])
    assert torch.equal(whole, torch.cat(expected))


@pytest.mark.parametrize("window", [None, 5, 70])
@pytest.mark.parametrize("precision", NUMBERS)
def test_torch_agrees(pools: tuple[Pool, Pool], precision: KVPrecision, window: int | None) -> None:
    parts = [(of, 0, length) for of, length in enumerate(LENGTHS)]
    native, by_torch = (
        Sequences(precision, 80, scattered=True).attend(*parts, window=window, pool=pool)
        for pool in (pools[1], None)
    )
    torch.testing.assert_close(native, by_torch, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("precision", NUMBERS)
def test_with_torch_company_and_pages_change_no_bit(precision: KVPrecision, window: int | None) -> None:
    expected = alone(precision, 80, window, None)
    sequences = Sequences(precision, 80, scattered=True)
    order = (4, 1, 6, 0, 2, 5, 3)
    found = sequences.attend(*((of, 0, LENGTHS[of]) for of in order), window=window)
    assert torch.equal(found, torch.cat([expected[of] for of in order]))


def test_pages_that_sequences_share(pools: tuple[Pool, Pool]) -> None:
    """Two sequences with the same first page, each with its own second one."""
    sequences = Sequences("bf16", 64, scattered=True)
    pool = pools[1]
    expected = sequences.attend((2, 0, 150), pool=pool)
    own: NDArray[np.int64] = sequences.cache.table(150)
    own[0] = sequences.tables[2][0]
    sequences.tables[2] = own
    assert torch.equal(sequences.attend((2, 64, 150), pool=pool), expected[64:])
