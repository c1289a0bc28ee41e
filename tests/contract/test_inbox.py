import time
from typing import Any

import pytest

from tests.contract.ranks import HUB, Ranks
from tpiedge.collectives.communicator import Communicator, Doing, Tag
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.errors import Misconduct, PeerLost
from tpiedge.transport.endpoint import Envelope, LinkReset
from tpiedge.wire.data import Hidden, Partial, Reduced, StepPlan
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
    made.begin(TAG.step)
    return made, hub


LATE = Partial(EPOCH, 1, 0, 0, 0, 1, None)


def test_messages_that_come_too_late_do_not_keep_a_wait_going() -> None:
    made, _ = inbox(LATE)
    with pytest.raises(PeerLost, match="node 2 was lost"):
        list(made.collect(Partial, TAG, {2}, WHAT, SHAPE))
    with pytest.raises(PeerLost):
        made.next_plan()


def test_a_link_that_broke_says_why() -> None:
    cause = "it had sent more than 7 bytes ahead"
    made, _ = inbox(LinkReset("node-1", cause))
    with pytest.raises(PeerLost) as caught:
        made.take_in("the wait for a request")
    assert caught.value.rank == 1
    assert caught.value.cause == f"its connection broke and was made anew: {cause}"
    assert PeerLost.read(str(caught.value)) is not None


def test_a_link_that_no_step_needs_may_break_and_come_back() -> None:
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
def test_only_rank_0_is_followed(network: Any, forged: Message) -> None:
    ranks = Ranks(network, "mesh", 3).meet()
    ranks.bare[2].send(forged, bytes(4) if isinstance(forged, Hidden) else None, "node-1", WAIT_S)
    with pytest.raises(Misconduct, match=f"node 2 sent {type(forged).__name__}, which only") as caught:
        ranks.groups[1].next_plan()
    assert caught.value.rank == 2


@pytest.mark.parametrize("forged", [StepPlan(EPOCH, 9, (), 1, 1), Reduced(EPOCH, 9, 0, 0, 0, HEADER)])
def test_nobody_leads_rank_0(network: Any, forged: Message) -> None:
    ranks = Ranks(network, HUB, 2).begun()
    ranks.bare[1].send(forged, bytes(4) if isinstance(forged, Reduced) else None, "node-0")
    with pytest.raises(Misconduct, match=f"node 1 sent {type(forged).__name__}, which only node 0 may send"):
        poll_for_long(ranks.groups[0])


def poll_for_long(root: Communicator) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        root.poll()
