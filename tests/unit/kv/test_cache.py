"""The KV cache keeps positions without holes and can be cut back."""

import mmap
from pathlib import Path

import pytest
import torch

from tpiedge.errors import OutOfMemory, ProtocolError
from tpiedge.kv.cache import KVCache


def make(**changes: object) -> KVCache:
    settings = {
        "num_layers": 2,
        "kv_heads": 3,
        "head_dim": 4,
        "slots": 2,
        "capacity": 8,
        "dtype": torch.float32,
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
    halved, whole = make(dtype=torch.bfloat16, capacity=1024), make(capacity=1024)
    assert halved.reserved_bytes * 2 == whole.reserved_bytes == 2 * 2 * 2 * 3 * 1024 * 4 * 4


def test_a_node_without_attention_has_an_empty_cache() -> None:
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


def test_what_a_shorter_sequence_does_not_need_goes_back_to_the_system() -> None:
    """What it keeps is as it was; and other sequences are."""
    cache = make(num_layers=4, kv_heads=2, head_dim=64, capacity=8192, quantum_bytes=1 << 20)
    k_TKd, v_TKd = torch.randn(8192, 2, 64), torch.randn(8192, 2, 64)
    for slot in (0, 1):
        cache.begin(slot, 0, 8192)
        for layer in range(4):
            cache.append(layer, slot, 0, k_TKd, v_TKd)
        cache.commit(slot, 8192)
    full, held = resident_bytes(), cache.held_bytes
    assert held == cache.reserved_bytes
    cache.begin(0, 1000, 1001, 1500)
    assert cache.held_bytes < held - (24 << 20)
    assert abs((full - resident_bytes()) - (held - cache.held_bytes)) < 4 << 20
    for layer in range(4):
        assert torch.equal(cache.keys(layer, 0, 1000), k_TKd[:1000].transpose(0, 1))
        assert torch.equal(cache.values(layer, 0, 1000), v_TKd[:1000].transpose(0, 1))
        assert torch.equal(cache.values(layer, 1, 8192), v_TKd.transpose(0, 1))
    assert not cache.keys(3, 0, 8192)[:, -100:].any()
