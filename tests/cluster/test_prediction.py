from dataclasses import replace

import pytest

from tests.cluster.packs import Packs, References, split
from tpiedge.engine.forward import kv_cache
from tpiedge.memory.weights import NodeWeights
from tpiedge.model.spec import config_of_pack
from tpiedge.pack.reader import Pack
from tpiedge.planner.needs import NodeFacts, model_facts
from tpiedge.planner.solve import Plan, evaluate, parse_shares


@pytest.mark.parametrize("shares", ["1", "3,1", "1,0:2,1", "1,1,1,1,1"])
@pytest.mark.parametrize(
    "name",
    [
        "openllama",
        "llama-gqa-odd",
        "qwen2-tied",
        "qwen3-biases",
        "gemma3",
        "olmo3",
        "phi4-mini-short",
        "gpt-oss",
    ],
)
def test_predicted_bytes_of_weights_and_cache_equal_held_bytes(
    name: str, shares: str, references: References, packs: Packs
) -> None:
    reference = references(name)
    pack = Pack.open(packs(reference))
    nodes = split(reference, shares)
    facts = replace(model_facts(pack, compute="f32", kv="f32"), capacity_tokens=300)
    plan = evaluate(facts, [NodeFacts(1.0)] * len(nodes), parse_shares(shares, len(nodes)))
    assert isinstance(plan, Plan)
    for rank, (share, need) in enumerate(zip(nodes, plan.needs, strict=True)):
        weights = NodeWeights(pack, share, rank == 0)
        held = weights.weight_bytes
        weights.close()
        assert plan.shares[rank] == share
        assert need.weight_bytes == held
        cache = kv_cache(config_of_pack(pack), share, "f32", 1, facts.capacity_tokens)
        assert need.kv_bytes == cache.reserved_bytes
