"""The KV cache keeps positions without holes and can be cut back."""

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
    assert (cache.length(0), cache.length(1)) == (0, 5)


def test_begin_cuts_back_for_a_shared_prefix() -> None:
    cache = make()
    cache.begin(0, 0, 6)
    cache.commit(0, 6)
    cache.begin(0, 4, 5)
    assert cache.length(0) == 4


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
    assert make(dtype=torch.bfloat16).reserved_bytes * 2 == make().reserved_bytes


def test_a_node_without_attention_has_an_empty_cache() -> None:
    cache = make(kv_heads=0)
    cache.begin(0, 0, 3)
    cache.append(0, 0, 0, torch.empty(3, 0, 4), torch.empty(3, 0, 4))
    assert cache.reserved_bytes == 0


def test_a_context_beyond_all_memory_is_said_in_one_line() -> None:
    with pytest.raises(OutOfMemory, match=r"cannot reserve 422\.2 TB for the KV cache"):
        make(capacity=1 << 40)
