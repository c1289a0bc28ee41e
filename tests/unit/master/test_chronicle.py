"""What the cluster's users read of what happened."""

from dataclasses import replace

from tests.unit.master.players import offer
from tests.unit.master.stories import Story
from tpiedge.master.chronicle import EVENTS, Chronicle
from tpiedge.master.roster import STOPPED, Roster
from tpiedge.master.workers import WorkerEvent
from tpiedge.wire.epochs import Leaving


class Book:
    """A chronicle of a roster whose machines are called like their names."""

    def __init__(self) -> None:
        self.now = 0.0
        self.roster = Roster(1.5)
        self.chronicle = Chronicle(lambda: 1000.0 + self.now)

    def offers(self, name: str, nonce: int = 1) -> None:
        self.roster.offered(name, replace(offer(nonce=nonce), host=f"{name}'s"), self.now)

    def new(self) -> list[tuple[str, str, str]]:
        """What is new with a look, the earliest first."""
        before = len(self.chronicle.events)
        self.chronicle.look(self.roster)
        found = self.chronicle.events[: len(self.chronicle.events) - before]
        return [(event.kind, event.machine, event.detail) for event in reversed(found)]


def test_machines_come_and_go() -> None:
    book = Book()
    assert book.new() == []
    book.offers("ann")
    book.offers("bob")
    assert book.new() == [("joined", "ann's", ""), ("joined", "bob's", "")]
    assert book.new() == []
    book.roster.step("ann", WorkerEvent.DRAINED, 0.0)
    assert book.new() == [("drained", "ann's", "")]
    book.roster.step("ann", WorkerEvent.UNDRAINED, 0.0)
    assert book.new() == [("undrained", "ann's", "")]
    book.roster.lose("ann", STOPPED, 0.0)
    book.roster.lose("bob", "silent for 1.6 s", 0.0)
    assert book.new() == [("left", "ann's", STOPPED), ("lost", "bob's", "silent for 1.6 s")]
    book.offers("bob")
    assert book.new() == [("joined", "bob's", "")]
    book.roster.forget("bob")
    assert book.new() == [("revoked", "bob's", "")]


def test_one_that_was_lost_and_is_back_before_the_next_look() -> None:
    book = Book()
    book.offers("ann")
    book.new()
    book.now = 5.0
    book.roster.lose("ann", "its agent was started anew", 0.0)
    book.offers("ann", nonce=2)
    assert book.new() == [("lost", "ann's", "its agent was started anew"), ("joined", "ann's", "")]
    assert book.chronicle.events[0].at == 1005.0


def test_a_changed_offer_is_no_event() -> None:
    book = Book()
    book.offers("ann")
    book.new()
    book.roster.offered("ann", replace(offer(), host="ann's", threads=8), 1.0)
    assert book.new() == []


def test_plans() -> None:
    chronicle = Book().chronicle
    chronicle.no_plan("too few")
    chronicle.no_plan("too few")
    chronicle.planned(())
    chronicle.serves(1, 1.0)
    chronicle.serves(1, 2.0)
    chronicle.interrupted("a loss\nof a node", 3.0)
    chronicle.interrupted("another one", 4.0)
    chronicle.plan_failed("no disk")
    chronicle.no_plan("too few")
    chronicle.serves(2, 5.5)
    chronicle.serves(3, 6.0)
    assert [(event.kind, event.detail) for event in reversed(chronicle.events)] == [
        ("no plan", "too few"),
        ("planned", ""),
        ("serving", ""),
        ("interrupted", "a loss of a node"),
        ("interrupted", "another one"),
        ("plan failed", "no disk"),
        ("no plan", "too few"),
        ("recovered", "after 2.5 s"),
        ("serving", ""),
    ]


def test_only_the_last_ones_are_kept() -> None:
    chronicle = Book().chronicle
    for number in range(2 * EVENTS):
        chronicle.plan_failed(number)
    assert len(chronicle.events) == EVENTS
    assert (chronicle.events[0].detail, chronicle.events[-1].detail) == (str(2 * EVENTS - 1), str(EVENTS))


def test_the_story_of_a_master(story: Story) -> None:
    story.join("w-1")
    story.settle()
    agent = story.join("w-2")
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")
    agent.say(Leaving(0))
    agent.frozen = True
    story.settle()
    assert story.members() == ("master", "w-1")
    told = [event.kind for event in reversed(story.master.events)]
    assert told[:2] == ["joined", "planned"]
    assert told[told.index("left") :] == ["left", "interrupted", "planned", "recovered"]
