from typing import Any

import pytest
import torch

from tests.contract.between import Changing, Late
from tests.contract.ranks import Ranks, each_link, part, parts, same, total
from tests.contract.test_refusals import frame
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.transport.endpoint import Envelope
from tpiedge.wire.data import Partial, Reduced, Slice, StepPlan
from tpiedge.wire.fields import Message, TensorHeader

HIDDEN = 96
ROW = TensorHeader("f32", (3, HIDDEN))


# Rank 0 sums what each other rank sends it.
@pytest.mark.fault("W5", "messages of an earlier epoch or step are dropped")
@each_link
def test_what_is_of_another_epoch_or_an_earlier_step_is_dropped_and_counted(network: Any, way: str) -> None:
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
    assert torch.equal(results[0], total(parts(3)))
    assert sum(group.dropped for group in ranks.groups) - before == 3 * len(sent) > 0


def holds_rank_0_back(sender: str, message: Message) -> bool:
    last = isinstance(message, Partial) or (isinstance(message, Slice) and message.hop == 1)
    return sender == "node-0" and (last or isinstance(message, StepPlan))


@pytest.mark.parametrize("way", ["mesh", "two-shot"])
def test_a_peer_may_be_a_step_ahead(network: Any, way: str) -> None:
    """Rank 2 hears of step 2 from rank 1 before rank 0 sends the end of step 1 and the plan."""
    ranks = Ranks(network, way, 3, wrap=lambda rank, one: Late(one) if rank == 2 else one)
    ranks.begun()
    late = ranks.endpoints[2]
    late.holds = holds_rank_0_back
    listen = late.inner.recv

    def until_ahead(timeout_s: float) -> Any:
        received = listen(timeout_s)
        if received is not None and received.sender == "node-1" and received.message.step == 2:
            late.released.set()
        return received

    late.inner.recv = until_ahead

    def work(one: Communicator) -> list[torch.Tensor]:
        first = one.all_reduce(part(one.rank), Tag(1, 0, 0))
        ranks.begin(one, 2)
        return [first, one.all_reduce(part(one.rank) * 2, Tag(2, 0, 0))]

    per_rank = ranks.run(work)
    for step in (0, 1):
        assert same([results[step] for results in per_rank])
        expected = total([one * (step + 1) for one in parts(3)])
        assert torch.equal(per_rank[0][step], expected)
    heard = [message for _, message in late.heard]
    plan = next(at for at, message in enumerate(heard) if isinstance(message, StepPlan) and message.step == 2)
    assert any(message.step == 2 for message in heard[:plan])


def test_a_sum_is_taken_from_rank_0_alone(network: Any) -> None:
    ranks = Ranks(network, "star", 3).begun().meet()
    ranks.bare[1].send(Reduced(1, 1, 0, 0, 0, ROW), part(7).numpy().data, "node-2")
    for result in ranks.reduce():
        assert torch.equal(result, total(parts(3)))
