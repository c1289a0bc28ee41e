"""Every communicator keeps its promises by every collective, over queues and over ZeroMQ with CURVE."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.ranks import EXACT, HUB, TAG, WAIT_S, WAYS, Ranks, each_link, part, parts, same, total
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.collectives.summation import F32Array
from tpiedge.errors import InternalError, ProtocolError
from tpiedge.transport.native_library import transport_library
from tpiedge.wire.data import StepPlan

HIDDEN = 96
# Rows that groups fill and rows that they do not, no rows at all, more than libzmq sends in one go.
SHAPES = [(0, 96), (1, 1), (1, 192), (3, 96), (2, 128), (7, 33), (700, 96)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check_sum(way: str, results: list[torch.Tensor], given: list[torch.Tensor]) -> None:
    assert same(results)
    if way in EXACT:
        assert torch.equal(results[0], total(given))
    exact = sum((one.double() for one in given), torch.zeros(given[0].shape, dtype=torch.float64))
    magnitude = sum((one.double().abs() for one in given), torch.zeros_like(exact))
    assert ((results[0] - exact).abs() <= len(given) * 2.0**-24 * magnitude).all()


def test_all_reduce_sums(ranks: Ranks) -> None:
    for block, (tokens, hidden) in enumerate(SHAPES):
        results = ranks.reduce(block, tokens=tokens, hidden=hidden)
        check_sum(ranks.way, results, parts(ranks.size, tokens, hidden))


@pytest.mark.parametrize("way", WAYS[2:])
def test_mesh_and_two_shot_are_refused_without_all_links(network: Any, way: str) -> None:
    ranks = Ranks(network, HUB, 2)
    root, leaf = ranks.endpoints
    leaf.send(ranks.plan(), None, "node-0")  # connects
    root.send(StepPlan(1, 1, (), 1, 1, collective=way, bulk_collective=way), None, "node-1")
    with pytest.raises(ProtocolError, match=f"asks for the collective {way}, but not all nodes are linked"):
        ranks.groups[1].next_plan()


def test_a_rank_without_a_share_contributes_nothing(ranks: Ranks) -> None:
    for block, silent in enumerate([{0}, {1}, {0, 2}, {1, 2}, {0, 1, 2, 3, 4}]):
        given = [part(rank) if rank not in silent else torch.zeros(3, HIDDEN) for rank in range(ranks.size)]

        def work(one: Communicator, block: int = block, silent: Any = silent) -> torch.Tensor:
            return one.all_reduce(part(one.rank), Tag(1, block, 0), contributes=one.rank not in silent)

        check_sum(ranks.way, ranks.run(work), given)


def test_all_reduce_results_share_no_memory(ranks: Ranks) -> None:
    def work(one: Communicator) -> None:
        one.begin_all_reduce(part(one.rank), TAG)
        first = one.finish_all_reduce(TAG)
        kept = first.clone()
        second = one.all_reduce(part(one.rank), Tag(1, 1, 0))
        second += 1
        assert torch.equal(first, kept)
        first += 1
        third = one.all_reduce(part(one.rank), Tag(1, 2, 0))
        assert torch.equal(third + 1, second)

    ranks.run(work)


@pytest.mark.parametrize("depth", [2, 3])
def test_several_all_reduces_overlap_with_computation(ranks: Ranks, depth: int) -> None:
    count = 12

    def work(one: Communicator) -> list[torch.Tensor]:
        results = []
        given = [part(one.rank) * (at + 1) for at in range(count)]
        for at in range(count + depth):
            if at < count:
                one.begin_all_reduce(given[at], Tag(1, at, 0))
            compute(300 * ((at + one.rank) % 3))
            if at >= depth:
                results.append(one.finish_all_reduce(Tag(1, at - depth, 0)))
        # And one whole one after them.
        return [*results, one.all_reduce(part(one.rank), Tag(1, count, 0))]

    per_rank = ranks.run(work)
    for at in range(count + 1):
        factor = at + 1 if at < count else 1
        check_sum(
            ranks.way, [results[at] for results in per_rank], [one * factor for one in parts(ranks.size)]
        )


def compute(size: int) -> None:
    matrix = np.ones((size, size), np.float32)
    assert not size or (matrix @ matrix)[0, 0] == size


def test_cancelling_reaches_every_rank_in_the_same_block(ranks: Ranks) -> None:
    def work(one: Communicator) -> list[bool]:
        seen = []
        for block in range(3):
            if one.rank == 0 and block == 1:
                one.request_cancel(TAG.step)
            one.all_reduce(part(one.rank), Tag(1, block, 0))
            seen.append(one.cancelled)
        return seen

    assert ranks.run(work) == [[False, True, True]] * ranks.size
    if ranks.size > 1:
        ranks.run(lambda one: ranks.begin(one, 2))
    else:
        ranks.all[0].announce(ranks.plan(2))
    assert not any(one.cancelled for one in ranks.all)


def two_blocks(one: Communicator) -> list[bool]:
    seen = []
    for block in range(2):
        one.all_reduce(part(one.rank), Tag(1, block, 0))
        seen.append(one.cancelled)
    return seen


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("way", [HUB, "star", "mesh"])
def test_cancel_while_rank_0_waits_reaches_every_rank(network, monkeypatch, way, size):
    ranks = Ranks(network, way, size).begun()
    ranks.reduce(9)  # all links are made
    root, asked = ranks.groups[0], threading.Event()
    plain, sent = root._fast.reduce, []

    def interrupted(*arguments: Any) -> tuple[int, F32Array | None]:
        outcome = plain(*arguments)
        root.request_cancel(1)
        sent.append(outcome[0])
        asked.set()
        return outcome

    monkeypatch.setattr(root._fast, "reduce", interrupted)

    def work(one: Communicator) -> list[bool]:
        assert one.rank != size - 1 or asked.wait(WAIT_S)
        return two_blocks(one)

    assert ranks.run(work) == [[sent[0] == 0, True]] * size
    native = network.kind == "zeromq" and transport_library() is not None
    assert sent == [size - 1 if native and way == "mesh" else 0]


def test_next_step_works_after_cancel_of_pending_all_reduces(ranks: Ranks) -> None:
    def work(one: Communicator) -> torch.Tensor:
        if one.rank == 0:
            one.request_cancel(TAG.step)
        for block in (0, 1):
            one.begin_all_reduce(part(one.rank), Tag(1, block, 0))
        one.finish_all_reduce(Tag(1, 0, 0))
        assert one.cancelled
        if ranks.size > 1:
            ranks.begin(one, 2)
        else:
            one.announce(ranks.plan(2))
        return one.all_reduce(part(one.rank), Tag(2, 1, 0))

    check_sum(ranks.way, ranks.run(work), parts(ranks.size))
    assert not any(one.cancelled for one in ranks.all)


@each_link
def test_all_reduce_accepts_only_contiguous_f32_matrices(network: Any, way: str) -> None:
    ranks = Ranks(network, way, 2)
    for wrong in (torch.zeros(3), torch.zeros(3, 4).T, torch.zeros(2, 2, dtype=torch.float64)):
        for take in (ranks.groups[0].all_reduce, ranks.groups[1].begin_all_reduce):
            with pytest.raises(InternalError, match="contiguous f32"):
                take(wrong, TAG)
