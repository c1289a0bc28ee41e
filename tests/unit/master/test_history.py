import queue
from dataclasses import replace

import pytest
from msgspec import structs

from tests.unit.master.players import offer
from tests.unit.master.stories import Story, two_machines
from tpiedge.errors import PeerError
from tpiedge.master.blame import Failure
from tpiedge.master.history import LOSS_CAUSES, History, LossCause
from tpiedge.master.journal import Paused, PendingAnswer
from tpiedge.master.roster import STOPPED, Roster
from tpiedge.master.workers import WorkerEvent


class Book:
    def __init__(self) -> None:
        self.now = 0.0
        self.roster = Roster(1.5)
        self.history = History(self.roster, lambda: 1000.0 + self.now)

    def offers(self, name: str, nonce: int = 1) -> None:
        self.roster.offered(name, structs.replace(offer(nonce=nonce), host=f"{name}'s"), self.now)

    def new(self) -> list[tuple[str, str, str]]:
        before = len(self.history.events)
        self.history.look()
        found = self.history.events[: len(self.history.events) - before]
        return [(event.kind, event.machine, event.detail) for event in reversed(found)]


def test_history_records_joins_drains_and_losses() -> None:
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
    book.roster.mark_away("ann", STOPPED, 0.0)
    book.roster.mark_away("bob", "silent for 1.6 s", 0.0)
    assert book.new() == [("left", "ann's", STOPPED), ("lost", "bob's", "silent for 1.6 s")]
    book.offers("bob")
    assert book.new() == [("joined", "bob's", "")]
    book.roster.remove("bob")
    assert book.new() == [("revoked", "bob's", "")]


def test_history_records_plan_events() -> None:
    history = Book().history
    history.no_plan("too few")
    history.no_plan("too few")
    history.began((), replaces=False)
    history.serves(1, 1.0)
    history.serves(1, 2.0)
    history.lost(Failure(PeerError("a loss\nof a node")), (), 3.0)
    history.lost(Failure(PeerError("another one")), (), 4.0)
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


FAILURE = Failure(PeerError("gone"))


def losses(history: History) -> dict[str, int]:
    return {cause: count for cause, count in zip(LOSS_CAUSES, history.so_far.losses, strict=True) if count}


def test_recovery_time_includes_failed_plans() -> None:
    """The first plan after it fails, too: requests were answered again with the second one."""
    history = Book().history
    history.began((), replaces=False)
    history.serves(1, 1.0)
    history.lost(replace(FAILURE, machine_lost=True), (), 10.0)
    history.began((), replaces=False)
    history.lost(FAILURE, (), 11.0)
    history.failed(FAILURE.error, serves=False)
    history.began((), replaces=False)
    history.serves(2, 14.0)
    history.began((), replaces=True)
    history.serves(3, 20.0)
    found = history.so_far
    assert (found.begun, found.failed) == ([1, 2, 1], 2)
    assert losses(history) == {"machine": 1}
    assert (sum(found.recoveries.counts), found.recoveries.total) == (1, 4.0)


@pytest.mark.parametrize(
    ("failure", "breached", "cause"),
    [
        (FAILURE, False, "other"),
        (replace(FAILURE, worker="ann"), False, "node"),
        (replace(FAILURE, worker="ann"), True, "protocol"),
        (replace(FAILURE, machine_lost=True, intended=True), False, "stopped"),
        (replace(FAILURE, machine_lost=True), False, "machine"),
        (replace(FAILURE, worker="ann", disputed="silent"), False, "dispute"),
    ],
)
def test_losses_are_counted_by_cause(failure: Failure, breached: bool, cause: LossCause) -> None:
    history = Book().history
    history.began((), replaces=False)
    history.serves(1, 0.0)
    history.lost(failure, (), 1.0, breached=breached)
    assert losses(history) == {cause: 1}


def said(answering: PendingAnswer) -> list[str]:
    found: list[str] = []
    while True:
        try:
            event = answering._events.get_nowait()
        except queue.Empty:
            return found
        if isinstance(event, Paused):
            found.append(event.why)


def test_paused_answer_reports_each_reason_once(story: Story) -> None:
    agent = two_machines(story)
    running, unasked = story.submit("r-1"), story.submit("r-2")
    story.turn()
    story.root.token()
    story.min_workers = 1
    agent.frozen = True
    agent.spoke.close()
    story.wait(3.0)
    loss = "pi was lost: its process ended or its connection broke"
    waits = "waiting for pi (its process ended or its connection broke)"
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
    assert said(unasked) == [waits, loss, f"{loss}; going on with the same machines", ""], "it starts later"
    back.failed("its process was killed by SIGKILL")
    story.turn()
    assert said(running)[0] == "pi was lost: its process was killed by SIGKILL"


def test_fetching_worker_shows_its_progress(story: Story) -> None:
    agent = story.join("w-1")
    agent.prepares = False
    story.settle()
    assert story.worker().state == "preparing", "nothing is known to be missing"
    agent.preparing(done=4)
    story.turn()
    found = story.worker()
    assert found.state == "fetching"
    assert (found.fetched_bytes, found.fetch_total_bytes, found.fetch_bytes_per_s) == (4, 10, 1.0)
    assert found.host == "pi"
    assert found.rank is None
