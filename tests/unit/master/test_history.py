"""What is counted, listed and said of what became of plans and machines."""

import queue
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.master.players import offer
from tests.unit.master.stories import Story, two_machines
from tpiedge.errors import OutOfMemory, PeerError, PeerLost, TpiedgeError
from tpiedge.master.blame import Failure
from tpiedge.master.history import EVENTS, LOSS_CAUSES, History, LossCause, PlanHistory
from tpiedge.master.journal import Paused
from tpiedge.master.pending_answer import PendingAnswer
from tpiedge.master.roster import STOPPED, Roster
from tpiedge.master.workers import WorkerEvent
from tpiedge.wire.epochs import Leaving


class Book:
    """The history of a roster whose machines are called like their names."""

    def __init__(self) -> None:
        self.now = 0.0
        self.roster = Roster(1.5)
        self.history = History(self.roster, lambda: 1000.0 + self.now)

    def offers(self, name: str, nonce: int = 1) -> None:
        self.roster.offered(name, replace(offer(nonce=nonce), host=f"{name}'s"), self.now)

    def new(self) -> list[tuple[str, str, str]]:
        """What is new with a look, the earliest first."""
        before = len(self.history.events)
        self.history.look()
        found = self.history.events[: len(self.history.events) - before]
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
    assert book.history.events[0].at == 1005.0


def test_a_changed_offer_is_no_event() -> None:
    book = Book()
    book.offers("ann")
    book.new()
    book.roster.offered("ann", replace(offer(), host="ann's", threads=8), 1.0)
    assert book.new() == []


def test_plans() -> None:
    history = Book().history
    history.no_plan("too few")
    history.no_plan("too few")
    history.began((), replaces=False)
    history.serves(1, 1.0)
    history.serves(1, 2.0)
    history.lost(PeerError("a loss\nof a node"), None, (), 3.0)
    history.lost(PeerError("another one"), None, (), 4.0)
    history.failed(PeerError("no disk"), serves=False)
    history.no_plan("too few")
    history.serves(2, 5.5)
    history.serves(3, 6.0)
    assert [(event.kind, event.detail) for event in reversed(history.events)] == [
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
    history = Book().history
    for number in range(2 * EVENTS):
        history.failed(PeerError(str(number)), serves=False)
    assert len(history.events) == EVENTS
    assert (history.events[0].detail, history.events[-1].detail) == (str(2 * EVENTS - 1), str(EVENTS))


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


# --- what is counted

FAILURE = Failure(PeerError("gone"))


def losses(history: History) -> dict[str, int]:
    return {cause: count for cause, count in zip(LOSS_CAUSES, history.so_far.losses, strict=True) if count}


def test_nothing_has_happened() -> None:
    assert Book().history.so_far == PlanHistory()


def test_a_loss_and_the_way_back() -> None:
    """The first plan after it fails, too: requests were answered again with the second one."""
    history = Book().history
    history.began((), replaces=False)
    history.serves(1, 1.0)
    history.lost(FAILURE.error, replace(FAILURE, machine_lost=True), (), 10.0)
    history.began((), replaces=False)
    history.lost(FAILURE.error, FAILURE, (), 11.0)
    history.failed(FAILURE.error, serves=False)
    history.began((), replaces=False)
    history.serves(2, 14.0)
    history.began((), replaces=True)
    history.serves(3, 20.0)
    found = history.so_far
    assert (found.begun, found.failed) == ((1, 2, 1), 2)
    assert losses(history) == {"machine": 1}
    assert (sum(found.recoveries.counts), found.recoveries.total) == (1, 4.0)


@pytest.mark.parametrize(
    ("failure", "breached", "cause"),
    [
        (None, False, "other"),
        (FAILURE, False, "other"),
        (replace(FAILURE, crashed="ann"), False, "node"),
        (replace(FAILURE, crashed="ann"), True, "protocol"),
        (replace(FAILURE, machine_lost=True, intended=True), False, "stopped"),
        (replace(FAILURE, machine_lost=True), False, "machine"),
        (replace(FAILURE, crashed="ann", disputed="silent"), False, "dispute"),
    ],
)
def test_causes(failure: Failure | None, breached: bool, cause: LossCause) -> None:
    history = Book().history
    history.began((), replaces=False)
    history.serves(1, 0.0)
    history.lost(FAILURE.error, failure, (), 1.0, breached=breached)
    assert losses(history) == {cause: 1}


# --- what is told to those whose answers pause

LOST = PeerLost(2, "the work", "its process ended or its connection broke", "dell-1")


def pauses(hosts: Iterable[str] = ("dell-1", "attic")) -> tuple[History, Roster]:
    """The workers of these computers are w-dell-1, w-attic."""
    roster = Roster(1.5)
    for host in hosts:
        roster.offered(f"w-{host}", replace(offer(), host=host), 0.0)
    return History(roster, lambda: 0.0), roster


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LOST, "dell-1 was lost: its process ended or its connection broke"),
        (PeerLost(0, "the work", "killed", "the master"), "node 0 (the master) was lost: killed"),
        (
            PeerLost(2, "its preparation", "silent", "dell-1"),
            "dell-1 was lost during its preparation: silent",
        ),
        (PeerLost(2, "the work", "killed"), "node 2 was lost: killed"),
        (OutOfMemory("on node 2 (dell-1): no memory"), "on node 2 (dell-1): no memory"),
    ],
)
def test_a_loss(error: TpiedgeError, words: str) -> None:
    told, _ = pauses()
    told.lost(error, None, ["w-dell-1"], 0.0)
    assert told.undecided("") == words
    assert told.undecided("; later") == f"{words}; later"


def test_a_master_that_was_started_again_says_so_until_a_plan_or_a_loss() -> None:
    told, _ = pauses()
    words = told.started_again()
    assert words == "the master was started again"
    assert told.going_on(["w-attic"]) == told.undecided("") == words
    assert told.waiting("0 of 1 worker here") == "0 of 1 worker here"
    told.lost(LOST, None, ["w-dell-1"], 0.0)
    assert told.going_on([]).endswith("going on without it")
    told.started_again()
    assert told.planned() == told.going_on([]) == "a new plan begins"


@pytest.mark.parametrize(
    ("machines", "words"),
    [
        (["w-attic"], "going on without it"),
        ([], "going on without dell-1, attic"),
        (["w-attic", "w-dell-1", "w-new"], "going on with the same machines"),
        (["w-dell-1"], "going on without attic"),
    ],
)
def test_who_goes_on(machines: list[str], words: str) -> None:
    told, _ = pauses()
    told.lost(LOST, None, ["w-dell-1", "w-attic"], 0.0)
    loss = "dell-1 was lost: its process ended or its connection broke"
    assert told.going_on(machines) == f"{loss}; {words}"


def test_who_is_waited_for() -> None:
    told, roster = pauses()
    assert told.waiting("nothing fits") == "nothing fits"
    told.lost(LOST, None, ["w-dell-1", "w-attic"], 0.0)
    assert told.waiting("nothing fits") == "nothing fits"
    roster.lose("w-dell-1", "cut off", 0.0)
    assert told.waiting("1 of 2 workers here") == "waiting for dell-1: 1 of 2 workers here"


def test_a_planned_change_is_no_loss() -> None:
    told, _ = pauses()
    told.lost(LOST, None, ["w-dell-1"], 0.0)
    assert told.planned() == told.going_on([]) == told.undecided("") == "a new plan begins"


def said(answering: PendingAnswer) -> list[str]:
    """What it was told since the last look."""
    found: list[str] = []
    while True:
        try:
            event = answering._events.get_nowait()
        except queue.Empty:
            return found
        if isinstance(event, Paused):
            found.append(event.why)


def test_what_is_told_follows_what_happens(story: Story) -> None:
    """The worker without which nothing can serve is lost, and comes back."""
    agent = two_machines(story)
    running, unasked = story.submit("r-1"), story.submit("r-2")
    story.turn()
    story.root.token()
    story.min_workers = 1
    agent.frozen = True
    agent.spoke.close()
    story.wait(3.0)
    loss = "pi was lost: its process ended or its connection broke"
    waits = "waiting for pi: 0 of 1 worker here; pi: its process ended or its connection broke"
    assert said(running) == [loss, waits]
    story.wait(3.0)
    assert said(running) == [], "each reason once"

    story.loads = False
    back = story.join("w-1")
    story.settle()
    assert said(running) == [loss, f"{loss}; going on with the same machines"]
    for node in story.nodes.values():
        node.ready()
    story.turn()
    story.root.token()
    story.turn()
    assert said(unasked) == [waits, loss, f"{loss}; going on with the same machines", ""], "its turn is later"
    back.failed("its process was killed by SIGKILL")
    story.turn()
    assert said(running)[0] == "pi was lost: its process was killed by SIGKILL"
