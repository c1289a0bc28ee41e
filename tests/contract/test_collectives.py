"""What every communicator promises, by every collective, over queues and over ZeroMQ with CURVE."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.ranks import (
    EPOCH,
    EXACT,
    HUB,
    TAG,
    WAIT_S,
    WAYS,
    Ranks,
    each_link,
    part,
    parts,
    same,
    total,
)
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.errors import InternalError, ProtocolError
from tpiedge.wire.data import LeavePages, StepPlan

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
    """The bits of the order of ranks where it is promised; the same bits everywhere, near the truth, in any case."""
    assert same(results)
    if way in EXACT:
        assert torch.equal(results[0], total(given))
    exact = sum((one.double() for one in given), torch.zeros(given[0].shape, dtype=torch.float64))
    magnitude = sum((one.double().abs() for one in given), torch.zeros_like(exact))
    assert ((results[0] - exact).abs() <= len(given) * 2.0**-24 * magnitude).all()


def test_ranks_and_sizes(ranks: Ranks) -> None:
    assert [(one.rank, one.size) for one in ranks.all] == [(rank, ranks.size) for rank in range(ranks.size)]


def test_all_reduce_sums(ranks: Ranks) -> None:
    for block, (tokens, hidden) in enumerate(SHAPES):
        results = ranks.reduce(block, tokens=tokens, hidden=hidden)
        check_sum(ranks.way, results, parts(ranks.size, tokens, hidden))


@each_link
def test_many_ranks(network: Any, way: str) -> None:
    ranks = Ranks(network, way, 8).begun()
    for block, shape in enumerate([(1, 192), (5, 96), (1, 64)]):
        check_sum(way, ranks.reduce(block, tokens=shape[0], hidden=shape[1]), parts(8, *shape))


def test_two_runs_give_the_same_bits(network: Any) -> None:
    for way in WAYS[1:]:
        results = [Ranks(network, way, 4).begun().reduce()[0] for _ in range(2)]
        assert same(results), way


def test_all_reduces_go_as_the_plan_says(network: Any) -> None:
    ranks = Ranks(network, "two-shot", 3).begun(collective="mesh", small_bytes=4 * HIDDEN)
    for block, tokens in enumerate((1, 2, 1, 1)):
        assert same(ranks.reduce(block, tokens=tokens))
    assert [group.counts for group in ranks.groups] == [{"mesh": 3, "two-shot": 1}] * 3


@pytest.mark.parametrize("way", WAYS[2:])
def test_without_links_between_all_there_is_only_the_star(network: Any, way: str) -> None:
    ranks = Ranks(network, HUB, 2)
    root, leaf = ranks.endpoints
    leaf.send(ranks.plan())  # connects
    root.send(StepPlan(1, 1, (), 1, 1, collective=way, bulk_collective=way), (), "node-1")
    with pytest.raises(ProtocolError, match=f"asks for the collective {way}, but not all nodes are linked"):
        ranks.groups[1].next_plan()


def test_a_rank_without_a_share_contributes_nothing(ranks: Ranks) -> None:
    for block, silent in enumerate([{0}, {1}, {0, 2}, {1, 2}, {0, 1, 2, 3, 4}]):
        given = [part(rank) if rank not in silent else torch.zeros(3, HIDDEN) for rank in range(ranks.size)]

        def work(one: Communicator, block: int = block, silent: Any = silent) -> torch.Tensor:
            return one.all_reduce(part(one.rank), Tag(1, block, 0), contributes=one.rank not in silent)

        check_sum(ranks.way, ranks.run(work), given)


def test_a_tensor_that_does_not_contribute_stays_as_it_is(ranks: Ranks) -> None:
    given = [part(7 + rank) for rank in range(ranks.size)]

    def work(one: Communicator) -> torch.Tensor:
        return one.all_reduce(given[one.rank], TAG, contributes=False)

    assert all(torch.equal(total, torch.zeros(3, HIDDEN)) for total in ranks.run(work))
    assert all(torch.equal(given[rank], part(7 + rank)) for rank in range(ranks.size))


def test_the_caller_owns_the_result(ranks: Ranks) -> None:
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


def test_many_blocks_and_chunks_in_a_row(ranks: Ranks) -> None:
    def work(one: Communicator) -> list[float]:
        return [
            float(one.all_reduce(torch.full((1, 4), float(block)), Tag(1, block, chunk))[0, 0])
            for block in range(20)
            for chunk in range(3)
        ]

    expected = [float(block * ranks.size) for block in range(20) for _ in range(3)]
    assert ranks.run(work) == [expected] * ranks.size


@pytest.mark.parametrize("depth", [2, 3])
def test_several_are_under_way_while_a_rank_computes(ranks: Ranks, depth: int) -> None:
    """Each rank computes another time between the halves; some finish with nothing else under way, some do not."""
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


@each_link
def test_some_finish_before_others_begin(network: Any, way: str) -> None:
    """Two jobs of the other ranks are under way before rank 2 begins its first."""
    three = Ranks(network, way, 3).begun()
    if way != HUB:
        three.meet()
    begun = [threading.Event() for _ in range(3)]
    begun[2].set()

    def work(one: Communicator) -> list[torch.Tensor]:
        if one.rank == 2:
            assert all(event.wait(WAIT_S) for event in begun)
        one.begin_all_reduce(part(one.rank), Tag(1, 0, 0))
        begun[one.rank].set()
        one.begin_all_reduce(part(one.rank) * 2, Tag(1, 1, 0))
        return [one.finish_all_reduce(Tag(1, block, 0)) for block in (0, 1)]

    per_rank = three.run(work)
    for block in (0, 1):
        check_sum(
            three.way, [results[block] for results in per_rank], [one * (block + 1) for one in parts(3)]
        )


def test_broadcast_gives_every_rank_the_same(ranks: Ranks) -> None:
    results = ranks.run(lambda one: one.broadcast(part(7) if one.rank == 0 else torch.empty(3, HIDDEN), TAG))
    assert all(torch.equal(result, part(7)) for result in results)


def test_gather_gives_the_root_all_parts(ranks: Ranks) -> None:
    results = ranks.run(lambda one: one.gather(part(one.rank, one.rank + 1), TAG))
    assert results[1:] == [None] * (ranks.size - 1)
    assert all(torch.equal(given, part(rank, rank + 1)) for rank, given in enumerate(results[0]))


def test_a_rank_and_the_root_exchange_parts_beside_the_others(ranks: Ranks) -> None:
    def work(one: Communicator) -> list[torch.Tensor | None]:
        part = torch.full((2, 3), float(one.rank))
        up = [one.send_up(part, rank, Tag(1, 0, rank)) for rank in range(1, one.size)]
        down = [one.send_down(part - rank, rank, Tag(1, 0, one.size + rank)) for rank in range(1, one.size)]
        return [*up, *down]

    said = ranks.run(work)
    workers = range(1, ranks.size)
    came = [float(one[0, 0]) for one in said[0] if one is not None]
    assert came == [float(rank) for rank in workers]
    for rank in workers:
        (mine,) = [one for one in said[rank] if one is not None]
        assert mine.shape == (2, 3)
        assert float(mine[1, 2]) == -rank


def test_steps_give_way_to_the_order_to_leave_what_is_computed(ranks: Ranks) -> None:
    order = LeavePages(EPOCH, 2, (3, 1), ((0, 1),) * ranks.size, ())

    def work(one: Communicator) -> object:
        if one.rank == 0:
            one.announce(order)
        else:
            assert one.next_plan() == order
        one.gather(torch.ones(1, 1), Tag(2, 0, 1))
        if ranks.size == 1:
            one.announce(ranks.plan(3))
        else:
            ranks.begin(one, 3)
        return one.all_reduce(torch.ones(1, 4), Tag(3, 0, 0))

    assert all(float(one[0, 0]) == ranks.size for one in ranks.run(work))


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


def test_a_cancel_ends_what_is_under_way(ranks: Ranks) -> None:
    """Every rank leaves the step with a later all-reduce under way, and the next step knows nothing of it."""

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
def test_steps_follow_each_other(network: Any, way: str) -> None:
    three = Ranks(network, way, 3).begun()

    def work(one: Communicator) -> list[torch.Tensor]:
        results = []
        for step in range(2, 7):
            three.begin(one, step)
            results.append(one.all_reduce(part(one.rank), Tag(step, 0, 0)))
        return results

    assert all(same([*results, total(parts(3))]) for results in three.run(work)) or three.way not in EXACT


@each_link
def test_only_contiguous_f32_matrices_are_taken(network: Any, way: str) -> None:
    ranks = Ranks(network, way, 2)
    for wrong in (torch.zeros(3), torch.zeros(3, 4).T, torch.zeros(2, 2, dtype=torch.float64)):
        for take in (ranks.groups[0].all_reduce, ranks.groups[1].begin_all_reduce):
            with pytest.raises(InternalError, match="contiguous f32"):
                take(wrong, TAG)


def test_only_rank_0_plans_and_cancels(network: Any) -> None:
    root, leaf = Ranks(network, HUB, 2).groups
    with pytest.raises(InternalError):
        leaf.announce(StepPlan(1, 1, (), 1, 1))
    with pytest.raises(InternalError):
        leaf.request_cancel(TAG.step)
    with pytest.raises(InternalError):
        leaf.poll()
    with pytest.raises(InternalError):
        root.next_plan()
