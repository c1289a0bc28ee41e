"""The KV cache keeps positions without holes and can be cut back."""

import mmap
from pathlib import Path

import pytest
import torch

from tests.unit.kernels.test_linear import open_library
from tpiedge.errors import OutOfMemory, ProtocolError
from tpiedge.kernels.attention import Rows, attention
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kernels.kv_rows import QuantisedRows, decode, encode
from tpiedge.kernels.library import Pool
from tpiedge.kv.cache import KVCache


def make(**changes: object) -> KVCache:
    settings = {
        "num_layers": 2,
        "kv_heads": 3,
        "head_dim": 4,
        "slots": 2,
        "capacity": 8,
        "precision": "f32",
    }
    return KVCache(**(settings | changes))  # type: ignore[arg-type]


def test_what_is_appended_is_read_back_per_layer_and_slot() -> None:
    cache = make()
    k_TKd, v_TKd = torch.randn(5, 3, 4), torch.randn(5, 3, 4)
    cache.begin(1, 0, 5)
    cache.append(1, 1, 0, k_TKd[:2], v_TKd[:2])
    cache.append(1, 1, 2, k_TKd[2:], v_TKd[2:])
    cache.commit(1, 5)
    assert torch.equal(cache.keys(1, 1, 5), k_TKd.transpose(0, 1))
    assert torch.equal(cache.values(1, 1, 5), v_TKd.transpose(0, 1))
    cache.begin(1, 5, 6)
    with pytest.raises(ProtocolError, match="slot 0 holds 0, not 5"):
        cache.begin(0, 5, 6)


def test_begin_cuts_back_for_a_shared_prefix() -> None:
    cache = make()
    cache.begin(0, 0, 6)
    cache.commit(0, 6)
    cache.begin(0, 4, 5)
    with pytest.raises(ProtocolError, match="slot 0 holds 4, not 5"):
        cache.begin(0, 5, 6)


@pytest.mark.parametrize(
    ("slot", "start", "stop", "complaint"),
    [
        (2, 0, 1, "slot 2"),
        (-1, 0, 1, "slot -1"),
        (0, 1, 2, "hole"),
        (0, 0, 9, "9 positions"),
        (0, -1, 1, "no interval"),
        (0, 0, -1, "no interval"),
    ],
)
def test_a_plan_that_breaks_the_laws_is_a_protocol_error(
    slot: int, start: int, stop: int, complaint: str
) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        make().begin(slot, start, stop)


def test_bf16_halves_the_reserved_bytes() -> None:
    halved, whole = make(precision="bf16", capacity=1024), make(capacity=1024)
    assert halved.reserved_bytes * 2 == whole.reserved_bytes == 2 * 2 * 2 * 3 * 1024 * 4 * 4


@pytest.mark.parametrize(("precision", "row_bytes"), [("f32", 256), ("bf16", 128), ("q8", 68), ("q4", 40)])
def test_a_position_takes_what_its_precision_needs(precision: str, row_bytes: int) -> None:
    """In whole pages of a head's positions."""
    cache = make(precision=precision, head_dim=64, capacity=1000, quantum_bytes=1)
    pages = -(-1000 * row_bytes // mmap.PAGESIZE)
    assert cache.reserved_bytes == 2 * 12 * pages * mmap.PAGESIZE
    cache.begin(0, 0, 1000)
    assert cache.held_bytes == 12 * pages * mmap.PAGESIZE


def numbers(rows: Rows) -> torch.Tensor:
    return rows.numbers() if isinstance(rows, QuantisedRows) else rows.float()


@pytest.mark.parametrize("isa", [None, "portable", "best"])
@pytest.mark.parametrize("precision", ["q8", "q4"])
def test_quantised_positions_are_read_back_and_cut_back(precision: str, isa: str | None) -> None:
    """Whether torch or the native kernels write them; what is cut off is replaced."""
    format_ = KVFormat(precision, 40)
    cache = make(precision=precision, head_dim=40, capacity=200)
    pool = None if isa is None else Pool(open_library(None if isa == "best" else isa), 1)
    k_TKd, v_TKd, other_TKd = torch.randn(150, 3, 40), torch.randn(150, 3, 40), torch.randn(70, 3, 40)
    cache.begin(1, 0, 150)
    for start, stop in [(0, 1), (1, 64), (64, 150)]:
        cache.append(1, 1, start, k_TKd[start:stop], v_TKd[start:stop], pool)
    cache.commit(1, 150)
    expected = [decode(encode(x, format_), format_).transpose(0, 1) for x in (k_TKd, v_TKd)]
    assert torch.equal(numbers(cache.keys(1, 1, 150)), expected[0])
    assert torch.equal(numbers(cache.values(1, 1, 150)), expected[1])
    cache.begin(1, 100, 170)
    cache.append(1, 1, 100, other_TKd, other_TKd, pool)
    cache.commit(1, 170)
    replaced = decode(encode(other_TKd, format_), format_).transpose(0, 1)
    assert torch.equal(numbers(cache.keys(1, 1, 170)), torch.cat([expected[0][:, :100], replaced], 1))
    assert not numbers(cache.keys(0, 1, 170)).any()
    assert not numbers(cache.keys(1, 0, 170)).any()
    with pytest.raises(ProtocolError, match="hole"):
        cache.begin(1, 171, 172)
    if pool is not None:
        pool.close()


@pytest.mark.parametrize("precision", ["f32", "bf16", "q8", "q4"])
def test_attention_over_a_growing_cache_has_the_bits_of_one_prompt(precision: str) -> None:
    """Token by token as in decode, in chunks as in prefill, or at once."""
    pool = Pool(open_library(), 2)
    q, k, v = (torch.randn(150, 3, 40) for _ in "qkv")

    def outputs(*cuts: int) -> torch.Tensor:
        cache = make(precision=precision, head_dim=40, capacity=200)
        parts = []
        for start, stop in zip((0, *cuts), (*cuts, 150), strict=True):
            cache.begin(0, start, stop)
            cache.append(0, 0, start, k[start:stop], v[start:stop], pool)
            cache.commit(0, stop)
            keys, values = cache.keys(0, 0, stop), cache.values(0, 0, stop)
            parts.append(attention(q[start:stop], keys, values, (0, 1, 2), start, pool=pool))
        return torch.cat(parts)

    whole = outputs()
    assert torch.equal(outputs(*range(1, 150)), whole)
    assert torch.equal(outputs(63, 64, 130), whole)
    pool.close()


def test_a_node_without_attention_has_an_empty_cache() -> None:
    quantised = make(kv_heads=0, precision="q4")
    quantised.begin(0, 0, 3)
    quantised.append(0, 0, 0, torch.empty(3, 0, 4), torch.empty(3, 0, 4))
    assert quantised.reserved_bytes == quantised.held_bytes == 0
    cache = make(kv_heads=0)
    cache.begin(0, 0, 3)
    cache.append(0, 0, 0, torch.empty(3, 0, 4), torch.empty(3, 0, 4))
    assert cache.reserved_bytes == cache.held_bytes == 0


def test_a_context_beyond_all_memory_is_said_in_one_line() -> None:
    with pytest.raises(OutOfMemory, match=r"cannot reserve 422\.2 TB for the KV cache"):
        make(capacity=1 << 40)


def test_memory_is_held_for_what_a_sequence_reaches() -> None:
    cache = make(
        capacity=4096, quantum_bytes=2 * 2 * 3 * 1024 * 16
    )  # 1024 positions in 12 runs of 16 bytes each
    runs, page = 12, 4096
    assert cache.held_bytes == 0
    cache.begin(1, 0, 1)
    assert cache.held_bytes == runs * 1024 * 16
    cache.commit(1, 1)
    cache.begin(1, 1, 1025)
    assert cache.held_bytes == runs * 2048 * 16
    cache.begin(0, 0, 1)
    assert cache.held_bytes == runs * 3072 * 16 < cache.reserved_bytes == 2 * runs * 4096 * 16
    assert make(capacity=9).held_bytes == 0
    small = make(capacity=9)
    small.begin(0, 0, 1)
    assert small.held_bytes == runs * page  # whole pages


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("precision", ["f32", "q8", "q4"])
def test_what_a_shorter_sequence_does_not_need_goes_back_to_the_system(precision: str) -> None:
    """What it keeps is as it was; and other sequences are."""
    settings = {"num_layers": 4, "kv_heads": 2, "head_dim": 64, "capacity": 8192, "quantum_bytes": 1 << 20}
    empty = resident_bytes()
    cache = make(precision=precision, **settings)
    pool = Pool(open_library(), 1)
    k_TKd, v_TKd = torch.randn(8192, 2, 64), torch.randn(8192, 2, 64)
    given = resident_bytes() - empty
    for slot in (0, 1):
        cache.begin(slot, 0, 8192)
        for layer in range(4):
            cache.append(layer, slot, 0, k_TKd, v_TKd, pool)
        cache.commit(slot, 8192)
    full, held = resident_bytes(), cache.held_bytes
    assert held == cache.reserved_bytes
    assert abs(full - empty - given - held) < 4 << 20
    before = [numbers(cache.keys(layer, 0, 1000)).clone() for layer in range(4)]
    others = [numbers(cache.values(layer, 1, 8192)).clone() for layer in range(4)]
    full = resident_bytes()
    cache.begin(0, 1000, 1001, 1500)
    assert cache.held_bytes < held * 2 // 3
    assert abs((full - resident_bytes()) - (held - cache.held_bytes)) < 4 << 20
    for layer in range(4):
        assert torch.equal(numbers(cache.keys(layer, 0, 1000)), before[layer])
        assert torch.equal(numbers(cache.values(layer, 1, 8192)), others[layer])
    assert not numbers(cache.keys(3, 0, 8192))[:, -100:].any()
    pool.close()
