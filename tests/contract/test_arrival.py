"""Messages that come early, late, ahead of others or in any order change nothing."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.between import Changing, Late
from tests.contract.ranks import EXACT, HUB, TAG, Ranks, each_link, part, parts, same, total
from tests.contract.test_refusals import frame
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.collectives.inbox import MAX_HELD
from tpiedge.collectives.peer_channel import node_name
from tpiedge.errors import ProtocolError
from tpiedge.transport.endpoint import Envelope
from tpiedge.wire.data import Gathered, Hidden, Partial, Reduced, Slice, StepPlan
from tpiedge.wire.messages import Message
from tpiedge.wire.tensors import TensorHeader

HIDDEN = 96
ROW = TensorHeader("f32", (3, HIDDEN))
# Rank 0 sums what each other rank sends it.
AT_RANK_0 = [HUB, "star", "mesh"]


def say(ranks: Ranks, rank: int, block: int, value: float | None) -> None:
    """The part of `rank`, past its communicator."""
    header = None if value is None else ROW
    tensors = () if value is None else (np.full(ROW.shape, value, np.float32).data,)
    ranks.bare[rank].send(Partial(1, 1, block, 0, 0, rank, header), tensors, "node-0")


@pytest.mark.parametrize("way", AT_RANK_0)
def test_early_messages_are_held(network: Any, way: str) -> None:
    ranks = Ranks(network, way, 3).begun()
    for block in (2, 1, 0):
        say(ranks, 1, block, float(block))
    for block in range(3):
        say(ranks, 2, block, None)
    for block in range(3):
        result = ranks.groups[0].all_reduce(part(0), Tag(1, block, 0))
        assert torch.equal(result, part(0) + block)


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))))
@pytest.mark.parametrize("way", AT_RANK_0)
def test_any_order_of_arrival_gives_the_order_of_ranks(
    network: Any, way: str, order: tuple[int, ...]
) -> None:
    ranks = Ranks(network, way, 4).begun()
    # (1e8 - 1e8) + 3 differs from 1e8 + (3 - 1e8) in f32.
    values = {1: 1e8, 2: -1e8, 3: 3.0}
    for rank in order:
        say(ranks, rank, 0, values[rank])
    result = ranks.groups[0].all_reduce(torch.full(ROW.shape, 1.0), TAG)
    expected = np.float32(1.0) + np.float32(1e8) + np.float32(-1e8) + np.float32(3.0)
    assert torch.equal(result, torch.full(ROW.shape, float(expected)))


@each_link
def test_what_is_of_another_epoch_or_an_earlier_step_is_dropped_and_counted(network: Any, way: str) -> None:
    """Before every message of every rank."""
    ranks = Ranks(network, way, 3, wrap=lambda _, one: Changing(one))
    ranks.begun()
    ranks.run(lambda one: ranks.begin(one, 2))
    sent = []

    def with_stale(envelope: Envelope) -> list[bytes]:
        sent.append(envelope)
        return [frame(envelope, epoch=0), frame(envelope, step=1), frame(envelope, epoch=2), frame(envelope)]

    for endpoint in ranks.endpoints:
        endpoint.change = with_stale
    before = sum(group.dropped for group in ranks.groups)
    results = ranks.run(lambda one: one.all_reduce(part(one.rank), Tag(2, 0, 0)))
    assert same(results)
    assert way not in EXACT or torch.equal(results[0], total(parts(3)))
    assert sum(group.dropped for group in ranks.groups) - before == 3 * len(sent) > 0


@each_link
def test_what_is_left_of_an_earlier_step_is_dropped_and_counted(network: Any, way: str) -> None:
    """What was held for a block that never came."""
    ranks = Ranks(network, way, 2).begun()
    own = part(1)
    for message in (
        Partial(1, 1, 5, 0, 0, 1, None),
        Slice(1, 1, 5, 0, 0, 1, 1, ROW),
        Gathered(1, 1, 5, 0, 1, ROW),
    ):
        ranks.bare[1].send(message, (own.numpy().data,) if message.tensor else (), "node-0")
    ranks.reduce()
    ranks.run(lambda one: ranks.begin(one, 2))
    assert ranks.groups[0].dropped == 3


@each_link
def test_messages_before_the_plan_wait_for_it(network: Any, way: str) -> None:
    ranks = Ranks(network, way, 2).begun()
    rows = part(0)
    root, data = ranks.bare[0], (rows.numpy().data,)
    root.send(Gathered(1, 1, 9, 0, 0, ROW), data, "node-1")
    root.send(Hidden(1, 2, 0, ROW), data, "node-1")
    ranks.run(lambda one: ranks.begin(one, 2))
    assert torch.equal(ranks.groups[1].broadcast(torch.empty(ROW.shape), Tag(2, 0, 0)), rows)
    assert ranks.groups[1].dropped == 1


def holds_rank_0_back(sender: str, message: Message) -> bool:
    """From its last word in the all-reduce of step 1 on: nothing that others need in order to get on."""
    last = isinstance(message, Partial) or (isinstance(message, Slice) and message.hop == 1)
    return sender == "node-0" and (last or isinstance(message, StepPlan))


@pytest.mark.parametrize("way", ["mesh", "two-shot", "ring"])
def test_a_peer_may_be_a_step_ahead(network: Any, way: str) -> None:
    """Rank 2 hears of step 2 from rank 1 before it has the end of step 1, and the plan, from rank 0."""
    ranks = Ranks(network, way, 3, wrap=lambda rank, one: Late(one) if rank == 2 else one)
    ranks.begun()
    late = ranks.endpoints[2]
    late.holds = holds_rank_0_back
    listen = late.inner.recv_frame

    def until_ahead(timeout_s: float) -> Any:
        received = listen(timeout_s)
        if received is not None:
            sender, seen = received[0], late.read(*received).message
            if sender == "node-1" and seen.step == 2:
                late.released.set()
        return received

    late.inner.recv_frame = until_ahead

    def work(one: Communicator) -> list[torch.Tensor]:
        first = one.all_reduce(part(one.rank), Tag(1, 0, 0))
        ranks.begin(one, 2)
        return [first, one.all_reduce(part(one.rank) * 2, Tag(2, 0, 0))]

    per_rank = ranks.run(work)
    for step in (0, 1):
        assert same([results[step] for results in per_rank])
        expected = total([one * (step + 1) for one in parts(3)])
        assert way not in EXACT or torch.equal(per_rank[0][step], expected)
    heard = [message for _, message in late.heard]
    plan = next(at for at, message in enumerate(heard) if isinstance(message, StepPlan) and message.step == 2)
    assert any(message.step == 2 for message in heard[:plan])


@each_link
def test_a_peer_far_ahead_is_stopped(network: Any, way: str) -> None:
    ranks = Ranks(network, way, 2).begun()
    for block in range(1, MAX_HELD + 2):
        ranks.bare[1].send(Partial(1, 1, block, 0, 0, 1, None), (), node_name(0))
    with pytest.raises(ProtocolError, match="node 1 is too far ahead"):
        ranks.groups[0].all_reduce(part(0), TAG)


def test_a_sum_is_taken_from_rank_0_alone(network: Any) -> None:
    """That of another rank is held, as if it came early, and no wait ends with it."""
    ranks = Ranks(network, "star", 3).begun().meet()
    ranks.bare[1].send(Reduced(1, 1, 0, 0, 0, ROW), (part(7).numpy().data,), "node-2")
    for result in ranks.reduce():
        assert torch.equal(result, total(parts(3)))
