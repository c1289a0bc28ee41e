"""Nodes that compute experts must choose the same."""

from pathlib import Path

import pytest

from tests.cluster.packs import split_of
from tests.fakes.cluster import InProcessCluster
from tests.mixtures import CONFIG, mixed_pack
from tpiedge.collectives.communicator import Route
from tpiedge.errors import Misconduct
from tpiedge.pack.specs import ROUTER, Precision

PROMPT = tuple(range(20, 60))


@pytest.mark.parametrize("precision", [Precision.F32, Precision.Q8])
def test_node_with_another_router_is_named(tmp_path: Path, precision: Precision) -> None:
    mixed_pack(tmp_path / "pack", precision)
    with InProcessCluster(
        tmp_path / "pack", split_of(CONFIG, "1,1,1"), route=Route("star", "star")
    ) as cluster:
        assert cluster.greedy(PROMPT, 2)
        cluster.weights[2].vectors[3][ROUTER].neg_()
        with pytest.raises(
            Misconduct, match="node 2 chose other experts than node 0 in step 3, block 7"
        ) as raised:
            cluster.greedy(PROMPT, 2)
    assert raised.value.rank == 2


def test_node_without_experts_needs_no_router(tmp_path: Path) -> None:
    pack = mixed_pack(tmp_path / "pack", Precision.F32).path
    with InProcessCluster(pack, split_of(CONFIG, "1,1:0,1")) as cluster:
        expected = cluster.greedy(PROMPT, 4)
    with InProcessCluster(pack, split_of(CONFIG, "1,1:0,1")) as cluster:
        for layer in range(CONFIG.num_layers):
            if ROUTER in cluster.weights[1].vectors[layer]:
                cluster.weights[1].vectors[layer][ROUTER].neg_()
        assert cluster.greedy(PROMPT, 4) == expected
