import time
from typing import Any

import pytest
import torch

from tests.contract.between import Changing, Late
from tests.contract.ranks import HUB, Ranks, each_link, part, parts, same, total
from tests.contract.test_refusals import frame
from tpiedge.collectives.communicator import Communicator, Doing, Tag
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.errors import Misconduct, PeerLost
from tpiedge.transport.endpoint import Envelope, LinkReset
from tpiedge.wire.data import Hidden, Partial, Reduced, Slice, StepPlan
from tpiedge.wire.fields import Message, TensorHeader

EPOCH, WAIT_S = 1, 20.0
TAG = Tag(2, 0, 0)
WHAT, SHAPE = Doing("all-reduce", TAG), (1, 1)


class Gone:
    def check(self, rank: int, waiting_for: str) -> None:
        raise PeerLost(rank, waiting_for, "the test said so")

    check_idle = check


class Stream:
    """A hub at which one message, or one error, arrives again and again: at most a million times."""

    def __init__(self, what: Message | Exception) -> None:
        self.left = 1_000_000
        self._what = what

    def recv(self, _timeout_s: float) -> Envelope | None:
        assert self.left, "nobody looked at anything else"
        self.left -= 1
        if isinstance(self._what, Exception):
            raise self._what
        return Envelope("node-1", self._what)


def inbox(what: Message | Exception) -> tuple[PeerChannel, Any]:
    hub: Any = Stream(what)
    made = PeerChannel(hub, Gone(), epoch=EPOCH, rank=0, size=3)
    made.start_step(TAG.step)
    return made, hub


LATE = Partial(EPOCH, 1, 0, 0, 0, 0, 1, None)


def test_messages_of_earlier_steps_do_not_prolong_a_wait() -> None:
    made, _ = inbox(LATE)
    with pytest.raises(PeerLost, match="node 2 was lost"):
        list(made.collect(Partial, TAG, {2}, WHAT, SHAPE))
    with pytest.raises(PeerLost):
        made.next_plan()


def test_peer_lost_error_gives_cause_of_broken_link() -> None:
    cause = "it had sent more than 7 bytes ahead"
    made, _ = inbox(LinkReset("node-1", cause))
    with pytest.raises(PeerLost) as caught:
        made.take_in("the wait for a request")
    assert caught.value.rank == 1
    assert caught.value.cause == f"its connection broke and was made anew: {cause}"
    assert PeerLost.read(str(caught.value)) is not None


def test_broken_link_is_ignored_if_no_step_needs_it() -> None:
    made, _ = inbox(LinkReset("node-1", "it was away"))
    made.needed = {2}
    made.take_in("the wait for a request")
    with pytest.raises(PeerLost, match=r"node 2 was lost .*the test said so"):
        list(made.collect(Partial, TAG, {2}, WHAT, SHAPE))
    with pytest.raises(PeerLost, match=r"node 2 was lost .*the test said so"):
        made.next_plan()


HEADER = TensorHeader("f32", (1, 1))


@pytest.mark.parametrize(
    "forged",
    [StepPlan(EPOCH, 2**64 - 1, (), 1, 1), Hidden(EPOCH, 2, 0, HEADER)],
    ids=lambda forged: type(forged).__name__,
)
def test_plans_and_hidden_states_are_accepted_only_from_rank_0(network: Any, forged: Message) -> None:
    ranks = Ranks(network, "mesh", 3).meet()
    ranks.bare[2].send(forged, bytes(4) if isinstance(forged, Hidden) else None, "node-1", WAIT_S)
    with pytest.raises(Misconduct, match=f"node 2 sent {type(forged).__name__}, which only") as caught:
        ranks.groups[1].next_plan()
    assert caught.value.rank == 2


@pytest.mark.parametrize("forged", [StepPlan(EPOCH, 9, (), 1, 1), Reduced(EPOCH, 9, 0, 0, 0, 0, HEADER)])
def test_rank_0_refuses_plans_and_sums_of_others(network: Any, forged: Message) -> None:
    ranks = Ranks(network, HUB, 2).begun()
    ranks.bare[1].send(forged, bytes(4) if isinstance(forged, Reduced) else None, "node-0")
    with pytest.raises(Misconduct, match=f"node 1 sent {type(forged).__name__}, which only node 0 may send"):
        poll_for_long(ranks.groups[0])


def poll_for_long(root: Communicator) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        root.poll()


HIDDEN = 96
ROW = TensorHeader("f32", (3, HIDDEN))


# Rank 0 sums what each other rank sends it.
@pytest.mark.fault("W5", "messages of an earlier epoch or step are dropped")
@each_link
def test_messages_of_other_epochs_or_earlier_steps_are_dropped(network: Any, way: str) -> None:
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
def test_message_of_next_step_may_arrive_before_its_plan(network: Any, way: str) -> None:
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


def test_reduced_sum_from_other_ranks_is_ignored(network: Any) -> None:
    ranks = Ranks(network, "star", 3).begun().meet()
    ranks.bare[1].send(Reduced(1, 1, 0, 0, 0, 0, ROW), part(7).numpy().data, "node-2")
    for result in ranks.reduce():
        assert torch.equal(result, total(parts(3)))
