"""What is told to those whose answers pause."""

import queue
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.master.players import offer
from tests.unit.master.stories import Story, two_machines
from tpiedge.errors import OutOfMemory, PeerLost, TpiedgeError
from tpiedge.master.journal import Paused
from tpiedge.master.pauses import Pauses
from tpiedge.master.pending_answer import PendingAnswer
from tpiedge.master.roster import Roster

LOST = PeerLost(2, "the work", "its process ended or its connection broke", "dell-1")


def pauses(hosts: Iterable[str] = ("dell-1", "attic")) -> tuple[Pauses, Roster]:
    """The workers of these computers are w-dell-1, w-attic."""
    roster = Roster(1.5)
    for host in hosts:
        roster.offered(f"w-{host}", replace(offer(), host=host), 0.0)
    return Pauses(roster), roster


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
    assert told.lost(error, ["w-dell-1"]) == words
    assert told.undecided("; later") == f"{words}; later"


def test_a_master_that_was_started_again_says_so_until_a_plan_or_a_loss() -> None:
    told, _ = pauses()
    words = told.started_again()
    assert words == "the master was started again"
    assert told.going_on(["w-attic"]) == told.undecided("") == words
    assert told.waiting("0 of 1 worker here") == "0 of 1 worker here"
    assert told.lost(LOST, ["w-dell-1"]) != words
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
    loss = told.lost(LOST, ["w-dell-1", "w-attic"])
    assert told.going_on(machines) == f"{loss}; {words}"


def test_who_is_waited_for() -> None:
    told, roster = pauses()
    assert told.waiting("nothing fits") == "nothing fits"
    told.lost(LOST, ["w-dell-1", "w-attic"])
    assert told.waiting("nothing fits") == "nothing fits"
    roster.lose("w-dell-1", "cut off", 0.0)
    assert told.waiting("1 of 2 workers here") == "waiting for dell-1: 1 of 2 workers here"


def test_a_planned_change_is_no_loss() -> None:
    told, _ = pauses()
    told.lost(LOST, ["w-dell-1"])
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
