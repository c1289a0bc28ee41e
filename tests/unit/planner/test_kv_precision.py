from dataclasses import replace

import pytest

from tests.unit.planner.test_solve import MODEL
from tpiedge.kernels.kv_format import KVFormat
from tpiedge.kv.cache import KVCache
from tpiedge.pack.share import NodeShare, Share, kv_share
from tpiedge.planner.needs import ModelFacts, NodeFacts, whole_need
from tpiedge.wire.fields import KVPrecision

PRECISIONS: list[KVPrecision] = ["f32", "bf16", "q8", "q4"]


def facts(kv: KVPrecision, head_dim: int = 128) -> ModelFacts:
    stored = KVFormat(kv, head_dim)
    return replace(
        MODEL, kv_part_bytes=stored.part_nbytes, kv_page_tokens=stored.page_positions, capacity_tokens=1000
    )


@pytest.mark.parametrize("head_dim", [64, 100, 128])
@pytest.mark.parametrize("kv", PRECISIONS)
def test_what_is_planned_is_what_the_cache_reserves(kv: KVPrecision, head_dim: int) -> None:
    model = facts(kv, head_dim)
    share = NodeShare(Share(0, 3), Share(0, 2))
    need = whole_need(model, 1, share, NodeFacts(1.0))
    heads = len(kv_share(share.attention, model.shape.group_size))
    cache = KVCache(model.num_layers, heads, KVFormat(kv, head_dim), slots=1, capacity=1000)
    assert need.kv_bytes == cache.reserved_bytes > 0
