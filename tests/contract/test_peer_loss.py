import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.contract.between import Stopped, Stopping
from tests.contract.networks import Network
from tests.contract.ranks import HUB, TAG, WAYS, Ranks, each_link, part
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.errors import PeerLost

SIZE = 4
# More than any rank of four sends in an all-reduce.
MESSAGES = 7
BLOCKS = MESSAGES + 2
FOUND_OUT_S = 15.0


class Cluster:
    """A cluster after the plan: the rank `victim` sends `messages` more and stops, and the others hear of it."""

    def __init__(self, network: Any, way: str, victim: int, messages: int, *, closes: bool = False) -> None:
        self.ranks = Ranks(
            network, way, SIZE, wrap=lambda rank, one: Stopping(one) if rank == victim else one
        )
        self.ranks.begun()
        self.victim = victim
        self._closes = closes
        self.ranks.endpoints[victim].left = messages

    def losses(self, work: Callable[[Communicator], None]) -> None:
        started = time.monotonic()
        outcomes = self.ranks.outcomes(lambda one: self._stop(one, work) if self._is_it(one) else work(one))
        assert time.monotonic() - started < FOUND_OUT_S
        assert isinstance(outcomes.pop(self.victim), Stopped)
        for outcome in outcomes:
            assert isinstance(outcome, PeerLost), outcome
            assert outcome.rank == self.victim
            assert "all-reduce of step 1, block" in str(outcome)

    def _is_it(self, one: Communicator) -> bool:
        return one.rank == self.victim

    def _stop(self, one: Communicator, work: Callable[[Communicator], None]) -> None:
        try:
            work(one)
        finally:
            if self._closes:
                self.ranks.bare[self.victim].close()


def one_by_one(one: Communicator) -> None:
    for block in range(BLOCKS):
        one.all_reduce(part(one.rank), Tag(1, block, 0))


def overlapping(one: Communicator) -> None:
    for block in range(BLOCKS):
        one.begin_all_reduce(part(one.rank), Tag(1, block, 0))
        if block:
            one.finish_all_reduce(Tag(1, block - 1, 0))
    one.finish_all_reduce(Tag(1, BLOCKS - 1, 0))


@pytest.fixture
def queues() -> Iterator[Network]:
    with closing(Network("inprocess")) as made:
        yield made


@pytest.mark.parametrize("work", [one_by_one, overlapping])
@pytest.mark.parametrize("messages", range(MESSAGES))
@pytest.mark.parametrize("victim", range(SIZE))
@pytest.mark.parametrize("way", WAYS[1:])
def test_peer_loss_after_any_message_ends_the_all_reduce(queues, way, victim, messages, work):
    Cluster(queues, way, victim, messages).losses(work)


@pytest.mark.parametrize(
    ("victim", "messages", "closes"), [(0, 4, False), (1, 1, True), (3, 3, False), (0, 0, True)]
)
@each_link
def test_peer_loss_over_any_link_ends_the_all_reduce(
    network: Any, way: str, victim: int, messages: int, closes: bool
) -> None:
    Cluster(network, way, victim, messages, closes=closes).losses(one_by_one)


@pytest.mark.parametrize(
    ("rank", "wait"),
    [
        (0, lambda one: one.send_up(part(0), 1, TAG)),
        (1, lambda one: one.broadcast(part(1), TAG)),
        (1, lambda one: one.next_plan()),
    ],
    ids=["send up", "broadcast", "plan"],
)
@pytest.mark.parametrize("way", [HUB, "mesh"])
def test_peer_loss_ends_every_other_wait(network, way, rank, wait):
    ranks = Ranks(network, way, 2).begun()
    alive = ranks.alive[rank]
    alive.asked.clear()

    def lose_the_other() -> None:
        if alive.asked.wait(FOUND_OUT_S):
            alive.lost.add(1 - rank)

    thread = threading.Thread(target=lose_the_other)
    thread.start()
    with pytest.raises(PeerLost, match="the test said so"):
        wait(ranks.groups[rank])
    thread.join()
