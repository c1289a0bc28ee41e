"""Without the native kernels a quantised cache is decoded once in a call, in bounded memory."""

import math

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.test_attention import naive
from tests.unit.kernels.test_ffn import Allocations
from tpiedge.kernels import torch_attention as module
from tpiedge.kernels.attention import kv_of_heads
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.kv_rows import QuantisedRows, encode
from tpiedge.kernels.torch_attention import attention

SCRATCH_BYTES = 12 << 20
PRECISIONS = ["q8", "q4"]


def stored(x_KSd: Tensor, precision: str) -> QuantisedRows:
    """As a cache keeps it."""
    format_ = KVFormat(precision, x_KSd.shape[2])
    return QuantisedRows(format_, encode(x_KSd.transpose(0, 1), format_).transpose(0, 1).contiguous())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tokens", [1, 300])
def test_a_cache_is_decoded_once_whatever_the_number_of_tokens(
    precision: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    numbers = QuantisedRows.numbers
    monkeypatch.setattr(QuantisedRows, "numbers", lambda rows: decoded.append(rows.shape[1]) or numbers(rows))
    monkeypatch.setattr(module, "_SCORE_ELEMENTS", 2000)
    monkeypatch.setattr(module, "_DECODED_ELEMENTS", 3000)
    positions, kv_heads = 500, 2
    k, v = (stored(torch.randn(kv_heads, positions, 32), precision) for _ in "kv")
    attention(torch.randn(tokens, 6, 32), k, v, kv_of_heads(0, 6, 3), positions - tokens)
    assert sum(decoded) == 2 * kv_heads * positions
    assert max(decoded) * 32 <= 3000


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("elements", [40, 700, 5000])
@pytest.mark.parametrize("window", [None, 1, 7, 30, 1000])
def test_parts_and_tiles_change_nothing(
    window: int | None, elements: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with scores so far apart that what was seen first is worth nothing later; rounding of scores around 60
    moves weights by 1e-5."""
    monkeypatch.setattr(module, "_SCORE_ELEMENTS", elements)
    monkeypatch.setattr(module, "_DECODED_ELEMENTS", 2 * elements)
    kv = kv_of_heads(1, 6, 3)
    for tokens, before in [(1, 0), (1, 80), (60, 0), (50, 33)]:
        growth = torch.linspace(0.1, 8, before + tokens)[None, :, None]
        k, v = (stored(part * torch.randn(2, before + tokens, 40), precision) for part in (growth, 1))
        q = torch.randn(tokens, len(kv), 40)
        out = attention(q, k, v, kv, before, window=window, scale=0.4)
        expected = naive(q * 0.4 * math.sqrt(40), k.numbers(), v.numbers(), kv, before, window)
        torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("tokens", "positions", "group", "width"),
    [
        (1, 30_000, 8, 64),
        (128, 30_000, 8, 64),
        (700, 6000, 1, 64),
        (128, 60_000, 8, 64),
        (1, 40_000, 64, 16),  # one query's scores of all keys that fit are too many
        (40, 40_000, 64, 16),
        (128, 12_000, 8, 100),  # rows are whole groups while they are decoded
        (40, 12_000, 64, 100),
        (128, 128, 64, 256),  # what the queries have is more than their scores
    ],
)
def test_temporaries_do_not_grow_with_the_context(
    tokens: int, positions: int, group: int, width: int, precision: str
) -> None:
    format_ = KVFormat(precision, width)
    k, v = (
        QuantisedRows(format_, torch.zeros(1, positions, format_.row_nbytes, dtype=torch.uint8)) for _ in "kv"
    )
    q = torch.ones(tokens, group, width)
    with Allocations() as seen:
        seen._known |= {given.untyped_storage().data_ptr() for given in (q, k.data_KSB, v.data_KSB)}
        attention(q, k, v, (0,) * group, positions - tokens)
    result_bytes = q.nbytes + 4 * q.nbytes // width
    assert seen.most < SCRATCH_BYTES + result_bytes
