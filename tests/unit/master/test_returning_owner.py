"""A master whose workers have parts of --shares starts again, and the owner of one is back with too little memory."""

from itertools import permutations
from typing import cast

import pytest

from tests.unit.master.players import FakeAgent
from tests.unit.master.stories import SERVED, Story
from tests.unit.master.test_placement import machine
from tests.unit.master.test_seats import HEAVY, small
from tpiedge.master.master import Master
from tpiedge.master.rank_zero import RankZero
from tpiedge.master.seats import Seat, Seats

WORKERS = ("ann", "bob", "eve")


class Kept:
    """A SeatFile without a disk."""

    def __init__(self) -> None:
        self.seats = Seats((Seat(), Seat()))

    def keep(self, seats: Seats) -> None:
        self.seats = seats


class Sharing(Story):
    """Parts of --shares for two workers: a quarter of the layers, and half of them."""

    def __init__(self, kept: Kept, known: tuple[str, ...] = ()) -> None:
        super().__init__()
        rank_zero = cast(RankZero, self.rank_zero)
        self.master.close()
        self.master = Master(
            self.hub, self.clock, SERVED, HEAVY, rank_zero, self.door, known=known, seats=kept
        )

    def come(self, name: str, *, has_less: bool = False) -> FakeAgent:
        agent = self.join(name)
        agent.offers = False
        agent.say((small if has_less else machine)(name).offer)
        return agent


@pytest.fixture
def kept() -> Kept:
    """What the master before left: ann has the quarter, bob the half."""
    found = Kept()
    story = Sharing(found)
    for name in WORKERS:
        story.come(name)
        story.turn()
    story.settle()
    assert story.ready
    assert story.members() == ("master", "ann", "bob")
    story.master.close()
    story.hub.close()
    assert found.seats == Seats((Seat("ann"), Seat("bob")))
    return found


@pytest.mark.parametrize("order", list(permutations(WORKERS)))
def test_a_fit_spare_has_its_part_and_it_is_told_why(kept: Kept, order: tuple[str, ...]) -> None:
    story = Sharing(kept, WORKERS)
    for name in order:
        story.come(name, has_less=name == "bob")
        story.turn()
    story.settle()
    assert story.ready, story.master.status.reason
    assert story.members() == ("master", "ann", "eve")
    bob = story.worker("bob")
    assert bob.spare == "no room"
    assert "it offers 524.3 MB, but its part of --shares needs 681 MB" in bob.why
    assert kept.seats == Seats((Seat("ann"), Seat("bob", "eve"))), "it is the owner still"
    story.agents["bob"].say(machine("bob").offer)
    story.wait_for(lambda: story.members() == ("master", "ann", "bob") and story.ready)
    story.master.close()
    story.hub.close()
