from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.kv_rows import encode
from tests.unit.kernels.paged import PagedCache
from tests.unit.kernels.test_linear import open_library
from tpiedge.kernels.attention import append_pages
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.library import Pool
from tpiedge.wire.fields import KVPrecision

NUMBERS: list[KVPrecision] = ["f32", "bf16"]
STORED: list[KVPrecision] = [*NUMBERS, "q8", "q4"]
WIDTH, KV_HEADS = 40, 2


CASES = [
    (engine, stored)
    for engine in ("torch", *AVAILABLE)
    for stored in (STORED if engine != "torch" else NUMBERS)
]


@pytest.fixture
def pool(engine: str) -> Iterator[Pool | None]:
    if engine == "torch":
        yield None
        return
    opened_pool = Pool(open_library(engine), 3)
    yield opened_pool
    opened_pool.close()


def bytes_of(x_TKd: Tensor, format_: KVFormat) -> Tensor:
    if format_.quantised:
        return encode(x_TKd, format_).transpose(0, 1)
    dtype = torch.float32 if format_.precision == "f32" else torch.bfloat16
    return x_TKd.to(dtype).view(torch.uint8).transpose(0, 1)


@pytest.mark.parametrize("positions", [64, 192])
@pytest.mark.parametrize(("engine", "precision"), CASES)
def test_kv_rows_are_written_to_their_positions(
    pool: Pool | None, precision: KVPrecision, positions: int
) -> None:
    cache = PagedCache(KVFormat(precision, WIDTH), KV_HEADS, layers=3, positions=positions, pages=40)
    layout, before = cache.layouts[1], cache.store_PB.clone()
    first, second, third = (cache.table(700) for _ in range(3))
    places = ((1, 63, first), (600, 0, second), (70, 60, third), (9, 64, first))
    tokens = sum(count for count, *_ in places)
    k, v = (torch.randn(tokens, KV_HEADS, WIDTH) for _ in "kv")
    append_pages(k, v, cache.spans(*places), layout, pool)
    at = 0
    for count, start, table in places:
        for x, found in zip((k, v), cache.rows(table, start + count, 1), strict=True):
            assert torch.equal(found[:, start:], bytes_of(x[at : at + count], layout.format))
        at += count
    written = (cache.store_PB != before).sum()
    rows = 2 * tokens * KV_HEADS * layout.format.row_nbytes
    assert 0.9 * rows < written <= rows  # some bytes are what was there


@pytest.mark.parametrize("precision", STORED)
def test_invalid_page_layouts_are_refused(precision: KVPrecision) -> None:
    good = PagedCache(KVFormat(precision, WIDTH), KV_HEADS, layers=2).layouts[1]
    store_PB = good.store_PB
    for changes in (
        {"positions": 0},
        {"positions": 96},
        {"positions": -64},
        {"positions": 1024},
        {"layer": -1},
        {"offset": -4096},
        {"offset": 1 << 40},
        {"layer": 2},
        {"kv_heads": -1},
        {"kv_heads": KV_HEADS + 1},
        {"store_PB": store_PB[:, 4:]},
        {"store_PB": store_PB.to(torch.int8)},
        {"store_PB": store_PB[0]},
        {"store_PB": store_PB.repeat(1, 2)[:, ::2]},
    ):
        with pytest.raises(ValueError, match="pages"):
            replace(good, **changes)  # type: ignore[arg-type]
    assert replace(good, kv_heads=1) != good
    assert replace(good) == good
