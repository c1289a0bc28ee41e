"""Layers that no family has (made_up.py): packed, streamed, divided, moved and predicted like those that there are."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.cluster.made_up import CONFIG, IDS, plain_answer, plain_logits, write_made_up
from tests.cluster.packs import split_of
from tests.cluster.test_exactness import assert_close
from tests.cluster.test_page_moves import (
    CHANGES,
    TOKENS,
    assert_continued,
    going_on,
    play,
    requests,
    undisturbed,
)
from tests.fakes import cluster as clusters
from tests.fakes.cluster import InProcessCluster
from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.memory.conftest import narrow
from tpiedge.engine.forward import Engine, kv_cache
from tpiedge.kernels.attention_block import FusedLayers
from tpiedge.kernels.kv_format import usual_kv
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.memory.sweep import placed
from tpiedge.memory.weights import NodeWeights
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import Precision
from tpiedge.planner.arithmetic import usual_compute
from tpiedge.planner.needs import NodeFacts, model_facts
from tpiedge.planner.solve import Plan, evaluate, parse_shares
from tpiedge.wire.fields import Keeping

#: Even and uneven, of one to five nodes; nodes without heads or columns; more nodes than KV heads of a layer.
SPLITS = ("1", "1,1", "3,1", "1,0:1", "1,5,2", "1:0,0:1,2", "1,2,1,1", "1,1,1,1,1", "5,0.1,1,1,2")
#: Of the logits' norm.
ROUNDING = {Precision.Q4: 0.5, Precision.Q8: 0.06}
native = pytest.mark.skipif(
    kernel_library() is None, reason="native: without its kernels bits depend on the split"
)

PackOf = Callable[[Precision], Path]


@pytest.fixture(scope="module")
def pack_of(tmp_path_factory: pytest.TempPathFactory) -> PackOf:
    folder = tmp_path_factory.mktemp("made-up")
    return functools.cache(lambda precision: write_made_up(folder / precision.value, precision))


@pytest.mark.parametrize(
    ("shares", "streamed"), [("1", False), *((shares, at % 2 == 0) for at, shares in enumerate(SPLITS))]
)
def test_made_up_layers_give_tokens_of_the_plain_loop(shares: str, streamed: bool, pack_of: PackOf) -> None:
    placement, pack, nodes = narrow if streamed else None, pack_of(Precision.F32), split_of(CONFIG, shares)
    with InProcessCluster(pack, nodes, placement=placement) as cluster:
        text = (*IDS, *cluster.greedy(IDS, 12))
        found_TV = cluster.logits(text)
        windows = [weights.window_bytes < weights.sweep.nbytes for weights in cluster.weights]
    assert text[len(IDS) :] == plain_answer(IDS, 12)
    assert not streamed or any(windows)
    assert_close(found_TV, plain_logits(text).numpy())


def test_made_up_layers_need_no_native_kernels(pack_of: PackOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters.Linear, "create", lambda arithmetic, _: Linear(arithmetic, 1, None))
    with InProcessCluster(pack_of(Precision.F32), split_of(CONFIG, "3,1")) as cluster:
        assert tuple(cluster.greedy(IDS, 12)) == plain_answer(IDS, 12)


@native
@pytest.mark.parametrize("precision", [Precision.Q4, Precision.Q8])
def test_made_up_layers_have_the_same_bits_for_every_split(
    precision: Precision, pack_of: PackOf, monkeypatch: pytest.MonkeyPatch, several_sets: Callable[..., None]
) -> None:
    stacks: list[int] = []
    run = FusedLayers.run
    monkeypatch.setattr(FusedLayers, "run", lambda *given: (stacks.append(len(given[1])), run(*given))[1])

    def logits(shares: str, *, streamed: bool = False) -> torch.Tensor:
        placement, nodes = narrow if streamed else None, split_of(CONFIG, shares)
        with InProcessCluster(pack_of(precision), nodes, placement=placement) as cluster:
            text = (*IDS, *cluster.greedy(IDS, 8))
            return cluster.logits(text)

    expected_TV = logits("1")
    assert stacks[:7] == [1] * 7, "a token is more than one native call"
    plain_TV = plain_logits(IDS)
    assert (expected_TV[: len(IDS)] - plain_TV).norm() < ROUNDING[precision] * plain_TV.norm()
    for at, shares in enumerate(SPLITS):
        assert torch.equal(logits(shares, streamed=at % 2 == 0), expected_TV), shares
    for isa in AVAILABLE:
        several_sets([isa])
        assert torch.equal(logits("1"), expected_TV), isa
    several_sets(AVAILABLE, (1, 2, 3, 4))
    assert torch.equal(logits("1,2,1,1"), expected_TV)
    monkeypatch.setattr(Engine, "_layers", None)
    assert torch.equal(logits("1"), expected_TV)


@pytest.mark.parametrize(
    ("change", "precision"),
    [(change, (Precision.Q4, Precision.F32)[at % 2]) for at, change in enumerate(CHANGES)],
)
def test_made_up_layers_continue_after_a_planned_change(
    change: str, precision: Precision, pack_of: PackOf, tmp_path: Path
) -> None:
    if precision is Precision.Q4 and kernel_library() is None:
        pytest.skip("native: q4 needs its kernels")
    assert_continued(IDS, pack_of(precision), change, 9, tmp_path)


@native
@pytest.mark.parametrize("precision", [Precision.Q4, Precision.F32])
def test_made_up_layers_continue_after_a_loss(precision: Precision, pack_of: PackOf) -> None:
    pack = pack_of(precision)
    with InProcessCluster(pack, split_of(CONFIG, "1,2,1"), capacity_tokens=512, sequences=3) as cluster:
        told = play(cluster, requests(IDS), 9)
    assert all(0 < len(tokens) < TOKENS for tokens in told.values())
    with InProcessCluster(pack, split_of(CONFIG, "1,1"), capacity_tokens=512, sequences=3) as cluster:
        assert play(cluster, going_on(IDS, told)) == undisturbed(IDS, pack)


@native
@pytest.mark.parametrize("shares", SPLITS)
@pytest.mark.parametrize("precision", [Precision.F32, Precision.Q4])
def test_planned_bytes_of_made_up_layers_are_those_that_nodes_hold(
    precision: Precision, shares: str, pack_of: PackOf
) -> None:
    pack, compute = Pack.open(pack_of(precision)), usual_compute(precision)
    kv, nodes = usual_kv(compute), shares.count(",") + 1
    facts = replace(model_facts(pack, compute=compute, kv=kv), capacity_tokens=1000)
    for node in (NodeFacts(1.0), NodeFacts(1.0, disk_bytes_per_s=1e9, keeping=Keeping("none"))):
        plan = evaluate(facts, [node] * nodes, parse_shares(shares, nodes))
        assert isinstance(plan, Plan)
        assert plan.shares == split_of(CONFIG, shares)
        for rank, (share, need) in enumerate(zip(plan.shares, plan.needs, strict=True)):
            weights = NodeWeights(pack, share, rank == 0, functools.partial(placed, need.weights))
            # A plan that streams counts the final norm as streamed, and rank 0 keeps it.
            norm = pack.layout("head").vectors_nbytes if rank == 0 and node.streams else 0
            assert need.weight_bytes + norm == weights.weight_bytes
            weights.close()
            assert need.kv_bytes == kv_cache(CONFIG, share, kv, 1, 1000).reserved_bytes
