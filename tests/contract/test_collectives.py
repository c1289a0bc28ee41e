"""What every communicator promises, for one to four ranks, over queues and over ZeroMQ with CURVE."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.collectives.inbox import MAX_HELD
from tpiedge.collectives.local import LocalCommunicator
from tpiedge.collectives.star import StarLeaf, StarRoot
from tpiedge.errors import InternalError, PeerLost, ProtocolError
from tpiedge.wire.control import Shutdown
from tpiedge.wire.data import Gathered, Hidden, Partial, Reduced, Segment, StepPlan
from tpiedge.wire.tensors import TensorHeader

HIDDEN = 96
PLAN = StepPlan(1, 1, (Segment(0, 0, 3, 3),), 3, 3)
TAG = Tag(1, 0, 0)


class Alive:
    """Peers live until the test says otherwise."""

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self.asked = threading.Event()

    def check(self, rank: int, waiting_for: str) -> None:
        self.asked.set()
        if rank in self.lost:
            raise PeerLost(rank, waiting_for, "the test said so")

    check_idle = check


class Star:
    """The ranks of one star, each with its endpoint and liveness."""

    def __init__(self, network: Any, size: int) -> None:
        self.alive = [Alive() for _ in range(size)]
        self.endpoints: list[Any] = [network.hub(), *(network.spoke(rank) for rank in range(1, size))]
        self.root = StarRoot(self.endpoints[0], self.alive[0], epoch=1, size=size)
        self.leaves = [
            StarLeaf(self.endpoints[rank], self.alive[rank], epoch=1, rank=rank, size=size)
            for rank in range(1, size)
        ]

    @property
    def ranks(self) -> list[Communicator]:
        return [self.root, *self.leaves]


def run(ranks: list[Communicator], work: Callable[[Communicator], Any]) -> list[Any]:
    """`work` on every rank at once; the results in rank order."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(work, ranks))


def begin(communicator: Communicator, plan: StepPlan = PLAN) -> StepPlan:
    if communicator.rank == 0:
        communicator.announce(plan)
        return plan
    return communicator.next_plan()


def begun(network: Any, size: int = 2) -> Star:
    star = Star(network, size)
    run(star.ranks, begin)
    return star


def partial(rank: int, tokens: int = 3) -> torch.Tensor:
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(rank))


@pytest.fixture(params=[1, 2, 3, 4])
def ranks(network: Any, request: pytest.FixtureRequest) -> list[Communicator]:
    made: list[Communicator]
    made = [LocalCommunicator()] if request.param == 1 else Star(network, request.param).ranks
    run(made, begin)
    return made


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_ranks_and_sizes(ranks: list[Communicator]) -> None:
    assert [(one.rank, one.size) for one in ranks] == [(rank, len(ranks)) for rank in range(len(ranks))]


@pytest.mark.parametrize("tokens", [0, 1, 3, 700])
def test_all_reduce_sums_in_the_order_of_ranks_to_the_bit(ranks: list[Communicator], tokens: int) -> None:
    expected = partial(0, tokens)
    for rank in range(1, len(ranks)):
        expected = expected + partial(rank, tokens)
    for total in run(ranks, lambda one: one.all_reduce(partial(one.rank, tokens), TAG)):
        assert torch.equal(total, expected)


@pytest.mark.parametrize("silent", [{0}, {1}, {0, 2}, {0, 1, 2, 3}])
def test_a_rank_without_a_share_contributes_nothing(ranks: list[Communicator], silent: set[int]) -> None:
    expected = torch.zeros(3, HIDDEN)
    for rank in range(len(ranks)):
        if rank not in silent:
            expected = expected + partial(rank)
    results = run(
        ranks, lambda one: one.all_reduce(partial(one.rank), TAG, contributes=one.rank not in silent)
    )
    assert all(torch.equal(total, expected) for total in results)


def test_the_caller_owns_the_result(ranks: list[Communicator]) -> None:
    def work(one: Communicator) -> None:
        first = one.all_reduce(partial(one.rank), TAG)
        kept = first.clone()
        second = one.all_reduce(partial(one.rank), Tag(1, 1, 0))
        second += 1
        assert torch.equal(first, kept)

    run(ranks, work)


def test_many_blocks_and_chunks_in_a_row(ranks: list[Communicator]) -> None:
    def work(one: Communicator) -> list[float]:
        return [
            float(one.all_reduce(torch.full((1, 4), float(block)), Tag(1, block, chunk))[0, 0])
            for block in range(20)
            for chunk in range(3)
        ]

    expected = [float(block * len(ranks)) for block in range(20) for _ in range(3)]
    assert run(ranks, work) == [expected] * len(ranks)


def test_broadcast_gives_every_rank_the_same(ranks: list[Communicator]) -> None:
    results = run(
        ranks, lambda one: one.broadcast(partial(7) if one.rank == 0 else torch.empty(3, HIDDEN), TAG)
    )
    assert all(torch.equal(result, partial(7)) for result in results)


def test_gather_gives_the_root_all_parts(ranks: list[Communicator]) -> None:
    results = run(ranks, lambda one: one.gather(partial(one.rank, one.rank + 1), TAG))
    assert results[1:] == [None] * (len(ranks) - 1)
    assert all(torch.equal(part, partial(rank, rank + 1)) for rank, part in enumerate(results[0]))


def test_cancelling_reaches_every_rank_in_the_same_block(ranks: list[Communicator]) -> None:
    def work(one: Communicator) -> list[bool]:
        seen = []
        for block in range(3):
            if one.rank == 0 and block == 1:
                one.request_cancel()
            one.all_reduce(partial(one.rank), Tag(1, block, 0))
            seen.append(one.cancelled)
        return seen

    assert run(ranks, work) == [[False, True, True]] * len(ranks)
    run(ranks, lambda one: begin(one, StepPlan(1, 2, (), 1, 1)) if len(ranks) > 1 else one.announce(PLAN))
    assert not any(one.cancelled for one in ranks)


def test_steps_follow_each_other(network: Any) -> None:
    star = Star(network, 3)

    def work(one: Communicator) -> list[int]:
        steps = []
        for step in range(1, 6):
            steps.append(begin(one, StepPlan(1, step, (), 1, 1)).step)
            one.all_reduce(partial(one.rank), Tag(step, 0, 0))
        return steps

    assert run(star.ranks, work) == [[1, 2, 3, 4, 5]] * 3


def test_what_is_left_of_an_earlier_step_is_dropped_and_counted(network: Any) -> None:
    star = begun(network)
    star.endpoints[1].send(Partial(1, 1, 5, 0, 1, None))
    star.endpoints[1].send(Partial(0, 2, 0, 0, 1, None))
    second = StepPlan(1, 2, (), 1, 1)
    run(star.ranks, lambda one: begin(one, second))
    run(star.ranks, lambda one: one.all_reduce(partial(one.rank), Tag(2, 0, 0)))
    assert star.root.dropped == 2


def test_early_messages_are_held(network: Any) -> None:
    star = begun(network, 3)
    own = partial(1)
    header = TensorHeader("f32", tuple(own.shape))
    for block in (2, 1, 0):
        star.endpoints[1].send(Partial(1, 1, block, 0, 1, header), (own.numpy().data,))
    for block in range(3):
        star.endpoints[2].send(Partial(1, 1, block, 0, 2, None))
    for block in range(3):
        assert torch.equal(star.root.all_reduce(partial(0), Tag(1, block, 0)), partial(0) + partial(1))


def test_a_peer_far_ahead_is_stopped(network: Any) -> None:
    star = begun(network)
    for block in range(1, MAX_HELD + 2):
        star.endpoints[1].send(Partial(1, 1, block, 0, 1, None))
    with pytest.raises(ProtocolError, match="node 1 is too far ahead"):
        star.root.all_reduce(partial(0), TAG)


ROW = TensorHeader("f32", (3, HIDDEN))


def _bytes(value: float = 0.0) -> bytes:
    return np.full((3, HIDDEN), value, np.float32).tobytes()


@pytest.mark.parametrize(
    ("message", "tensors", "cause"),
    [
        (Partial(1, 1, 0, 0, 1, TensorHeader("f32", (3, 1))), (bytes(12),), "node 1 sent .* where"),
        (Partial(1, 1, 0, 0, 1, TensorHeader("f32", (3 * HIDDEN,))), (_bytes(),), "node 1 sent .* where"),
        (Partial(1, 1, 0, 0, 1, TensorHeader("bf16", (3, HIDDEN))), (_bytes()[::2],), "node 1 sent .* where"),
        (Partial(1, 1, 0, 0, 0, ROW), (_bytes(),), "node 1 speaks for another"),
        (
            Partial(1, 1, 0, 0, 1, ROW),
            (_bytes(float("nan")),),
            "node 1 contributed a value that is not finite",
        ),
        (
            Partial(1, 1, 0, 0, 1, ROW),
            (_bytes(float("inf")),),
            "node 1 contributed a value that is not finite",
        ),
        (Shutdown(1), (), "node 1 sent Shutdown on the tensor plane"),
    ],
)
def test_the_root_names_who_breaks_the_protocol(network: Any, message: Any, tensors: Any, cause: str) -> None:
    star = begun(network)
    star.endpoints[1].send(message, tensors)
    with pytest.raises(ProtocolError, match=cause):
        star.root.all_reduce(partial(0), TAG)


def test_a_leaf_names_the_root_that_breaks_the_protocol(network: Any) -> None:
    star = begun(network)
    star.endpoints[0].send(Reduced(1, 1, 0, 0, 0, TensorHeader("f32", (1, 1))), (bytes(4),), "node-1")
    with pytest.raises(ProtocolError, match="node 0 sent"):
        star.leaves[0].all_reduce(partial(1), TAG)


def test_the_same_message_twice_is_refused(network: Any) -> None:
    star = begun(network, 3)
    for _ in range(2):
        star.endpoints[1].send(Partial(1, 1, 1, 0, 1, None))
    with pytest.raises(ProtocolError, match="twice"):
        star.root.all_reduce(partial(0), TAG)


def test_a_sum_beyond_f32_is_an_error_and_a_large_one_is_not(network: Any) -> None:
    star = begun(network)
    large = torch.full((3, HIDDEN), 3e38)
    star.endpoints[1].send(Partial(1, 1, 0, 0, 1, None))
    assert torch.equal(star.root.all_reduce(large, TAG), large)
    star.endpoints[1].send(Partial(1, 1, 1, 0, 1, ROW), (_bytes(3e38),))
    with pytest.raises(ProtocolError, match="overflows"):
        star.root.all_reduce(large, Tag(1, 1, 0))


def test_partials_that_come_in_any_order_are_summed_in_the_order_of_ranks(network: Any) -> None:
    star = begun(network, 4)
    # (1e8 - 1e8) + 3 differs from 1e8 + (3 - 1e8) in f32.
    for rank, value in ((3, 3.0), (1, 1e8), (2, -1e8)):
        star.endpoints[rank].send(Partial(1, 1, 0, 0, rank, ROW), (_bytes(value),))
    total = star.root.all_reduce(torch.full((3, HIDDEN), 1.0), TAG)
    expected = np.float32(1.0) + np.float32(1e8) + np.float32(-1e8) + np.float32(3.0)
    assert torch.equal(total, torch.full((3, HIDDEN), float(expected)))


@pytest.mark.parametrize("guilty", [0, 1, 2])
def test_a_value_that_is_not_finite_is_blamed_on_its_sender(network: Any, guilty: int) -> None:
    star = begun(network, 3)
    values = [float("nan") if rank == guilty else 1.0 for rank in range(3)]
    for rank in (2, 1):
        star.endpoints[rank].send(Partial(1, 1, 0, 0, rank, ROW), (_bytes(values[rank]),))
    with pytest.raises(ProtocolError, match=f"node {guilty} contributed a value that is not finite"):
        star.root.all_reduce(torch.full((3, HIDDEN), values[0]), TAG)


def test_a_tensor_that_does_not_contribute_stays_as_it_is(network: Any) -> None:
    star = begun(network)
    given = [partial(7), partial(8)]

    def work(one: Communicator) -> torch.Tensor:
        return one.all_reduce(given[one.rank], TAG, contributes=False)

    assert all(torch.equal(total, torch.zeros(3, HIDDEN)) for total in run(star.ranks, work))
    assert torch.equal(given[0], partial(7))
    assert torch.equal(given[1], partial(8))


@pytest.mark.parametrize(
    "wait",
    [
        lambda star: star.root.all_reduce(partial(0), TAG),
        lambda star: star.root.gather(partial(0), TAG),
        lambda star: star.leaves[0].all_reduce(partial(1), TAG),
        lambda star: star.leaves[0].broadcast(partial(1), TAG),
        lambda star: star.leaves[0].next_plan(),
    ],
)
def test_every_wait_ends_when_the_peer_is_lost(network: Any, wait: Callable[[Star], Any]) -> None:
    star = begun(network)
    for rank, alive in enumerate(star.alive):
        alive.asked.clear()
        threading.Timer(0.1, alive.lost.add, (1 - rank,)).start()
    with pytest.raises(PeerLost, match="the test said so"):
        wait(star)


def test_sending_to_a_lost_peer_ends(network: Any) -> None:
    star = Star(network, 2)
    star.endpoints[1].close()
    star.alive[0].lost.add(1)
    deadline = time.monotonic() + 10

    def broadcast_until_it_fails() -> None:
        while time.monotonic() < deadline:
            star.root.broadcast(partial(0), TAG)

    with pytest.raises(PeerLost):
        broadcast_until_it_fails()


def test_only_contiguous_f32_matrices_are_taken(network: Any) -> None:
    star = begun(network)
    for wrong in (torch.zeros(3), torch.zeros(3, 4).T, torch.zeros(2, 2, dtype=torch.float64)):
        with pytest.raises(InternalError, match="contiguous f32"):
            star.root.all_reduce(wrong, TAG)


def test_only_rank_0_plans_and_cancels(network: Any) -> None:
    star = Star(network, 2)
    with pytest.raises(InternalError):
        star.leaves[0].announce(PLAN)
    with pytest.raises(InternalError):
        star.leaves[0].request_cancel()
    with pytest.raises(InternalError):
        star.root.next_plan()


def test_messages_before_the_plan_wait_for_it(network: Any) -> None:
    star = begun(network)
    array = partial(0)
    header = TensorHeader("f32", tuple(array.shape))
    star.endpoints[0].send(Gathered(1, 1, 9, 0, 0, header), (array.numpy().data,), "node-1")
    star.endpoints[0].send(Hidden(1, 2, 0, header), (array.numpy().data,), "node-1")
    second = StepPlan(1, 2, (), 1, 1)
    run(star.ranks, lambda one: begin(one, second))
    assert torch.equal(star.leaves[0].broadcast(torch.empty(3, HIDDEN), Tag(2, 0, 0)), array)
    assert star.leaves[0].dropped == 1
