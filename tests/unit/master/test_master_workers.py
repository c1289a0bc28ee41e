"""Stories of a master whose workers join: who is planned with, and when."""

import re

import pytest

from tests.unit.master.players import FakeAgent, offer
from tests.unit.master.stories import Story, assignments_of, failure, outcome, two_machines
from tpiedge.master.master import NotServing
from tpiedge.master.workers import FIRST_S, WorkerEvent
from tpiedge.planner.capacity import MOST_MACHINES
from tpiedge.planner.reasons import SpareReason
from tpiedge.wire.control import Pulse, Shutdown
from tpiedge.wire.epochs import Launch, Leaving, MasterPulse, Prepare, Prepared, Spare


@pytest.mark.fault("P18", "plans change between two requests")
def test_the_next_plan_is_prepared_while_the_first_serves_and_then_takes_its_place(story: Story) -> None:
    story.settle()
    first, second = story.submit("r-1"), story.submit("r-2")
    story.turn()
    alone = story.root
    alone.token("r-1")
    agent = story.join("w-1")
    agent.prepares = False
    story.settle()
    assert agent.count(Prepare) == 1
    assert agent.count(Launch) == 0
    assert alone.count(Shutdown) == 0
    agent.prepared()
    story.settle()
    assert alone.count(Shutdown) == 1
    assert story.members() == ("master", "w-1")
    for name, answering in (("r-1", first), ("r-2", second)):
        assert story.root.asked[-1] == name
        story.root.finish(name)
        story.turn()
        assert isinstance(outcome(answering), list)
    assert alone.asked == ["r-1"]


def test_workers_that_come_together_are_planned_for_together(story: Story) -> None:
    for name in ("w-1", "w-2", "w-3"):
        story.join(name)
        story.wait(0.1)
    story.settle()
    assert story.members() == ("master", "w-1", "w-2", "w-3")
    assert all(agent.count(Prepare) == 1 for agent in story.agents.values())


def test_a_worker_that_comes_during_preparation_changes_the_plan(story: Story) -> None:
    """The first plan is given up by a Release, and its late answer means nothing."""
    first = story.join("w-1")
    first.prepares = False
    story.settle()
    stale = first.order
    assert stale is not None
    story.join("w-2")
    story.settle()
    assert stale.epoch in first.released
    first.say(Prepared(stale.epoch, first.key))
    story.turn()
    assert first.count(Launch) == 0
    first.prepared()
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")


def fetching(story: Story, total: int) -> FakeAgent:
    """Nothing is served yet; w-1 is prepared, w-2 has fetched one byte of so many."""
    story.join("w-1")
    slow = story.join("w-2")
    slow.prepares = False
    story.settle()
    slow.preparing(1, total)
    return slow


def test_who_fetched_for_long_is_forgotten_with_the_machine(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing is served, workers with ever new names come and go."""
    monkeypatch.setattr("tpiedge.master.roster.GONE", 2)
    story.join("w-1").prepares = False
    for number in range(2, 9):
        slow = story.join(f"w-{number}")
        slow.prepares = False
        story.settle()
        slow.preparing(1, 100)
        story.wait_for(lambda name=slow.name: name in story.master._reconciler._selection.slow, 10.0)
        slow.frozen = True
        story.wait(3.0)
    assert not story.ready
    assert len(story.master._reconciler._selection.slow) <= 3


def test_where_nothing_is_served_a_worker_that_fetches_for_long_is_not_waited_for(story: Story) -> None:
    slow = fetching(story, 100)
    story.wait_for(lambda: story.ready, 5.0)
    assert story.members() == ("master", "w-1")
    assert told(slow) == [("fetching", "its weights take long to come, and the others begin without it")]
    assert slow.count(Prepare) == 2, "it goes on while the others serve"
    story.answer()
    slow.prepared()
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")


def test_a_worker_that_is_about_to_have_its_part_is_waited_for(story: Story) -> None:
    slow = fetching(story, 10)
    story.wait(5.0)
    assert not story.ready
    slow.prepared()
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")
    assert slow.count(Prepare) == 1


def test_where_nothing_is_served_a_worker_whose_disk_hangs_is_not_waited_for(story: Story) -> None:
    """Until the others serve; then it has its time."""
    story.join("w-1")
    stuck = story.join("w-2")
    stuck.prepares = False
    story.wait(15.0)
    assert not story.ready, "it may look through what it has"
    story.wait_for(lambda: story.ready, 10.0)
    assert story.members() == ("master", "w-1")
    story.answer()
    stuck.prepared()
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")


def test_a_worker_that_stops_fetching_is_not_waited_for(story: Story) -> None:
    stuck = fetching(story, 10)
    story.wait(15.0)
    stuck.preparing(2, 10)
    story.wait(15.0)
    assert not story.ready
    story.wait_for(lambda: story.ready, 10.0)
    assert story.members() == ("master", "w-1")


def test_a_worker_that_fetches_for_long_is_waited_for_where_it_is_needed(story: Story) -> None:
    story.min_workers = 2
    slow = fetching(story, 1000)
    story.wait(20.0)
    assert not story.ready
    assert slow.count(Prepare) == 1, "it is not disturbed"
    slow.prepared()
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")


def test_the_same_plan_again_changes_nothing(story: Story) -> None:
    agent = two_machines(story)
    epoch = story.epoch
    agent.say(offer("w-1", memory_bytes=5))
    story.settle()
    assert story.epoch == epoch
    assert agent.count(Prepare) == 1


def test_a_worker_without_a_part_is_spare(story: Story) -> None:
    story.plan = lambda machines: assignments_of()
    story.join("w-1")
    story.settle()
    assert (story.worker().state, story.worker().rank) == ("spare", None)


def told(agent: FakeAgent) -> list[tuple[str, str]]:
    """(kind, words) of every reason for which the plan has no part for it, as it was told."""
    return [(message.kind, message.why) for message in agent.heard if isinstance(message, Spare)]


def test_a_worker_without_a_part_is_told_why_and_again_when_that_changes(story: Story) -> None:
    """Taken in, and then a spare once more."""
    story.plan = lambda machines: assignments_of()
    story.spare = {"w-1": SpareReason("slower", "2 s with it,\n1 s without it")}
    agent = story.join("w-1")
    story.settle()
    assert told(agent) == [("slower", "2 s with it, 1 s without it")]
    story.join("w-2")
    story.settle()
    assert len(told(agent)) == 1, "another plan, the same kind of reason"
    assert told(story.agents["w-2"]) == [], "the plan gave none"

    story.plan, slow, story.spare = lambda machines: assignments_of("w-1"), story.spare, {}
    agent.say(offer("w-1", memory_bytes=5))
    story.settle()
    assert story.members() == ("master", "w-1")
    assert len(told(agent)) == 1
    story.plan, story.spare = lambda machines: assignments_of(), slow
    agent.say(offer("w-1", memory_bytes=6))
    story.settle()
    assert told(agent) == 2 * [("slower", "2 s with it, 1 s without it")]


def test_a_worker_whose_place_another_takes_is_told(story: Story) -> None:
    """Once the other one has it: until then it computes."""
    story.plan = lambda machines: assignments_of("w-2")
    ousted = story.join("w-2")
    story.settle()
    story.plan, story.spare = lambda machines: assignments_of("w-1"), {"w-2": SpareReason("slower", "words")}
    story.join("w-1")
    story.settle()
    assert story.members() == ("master", "w-1")
    assert told(ousted) == [("slower", "words")]


def test_a_worker_that_starts_anew_is_told_again(story: Story) -> None:
    story.plan = lambda machines: assignments_of()
    story.spare = {"w-1": SpareReason("slower", "words")}
    agent = story.join("w-1")
    story.settle()
    agent.say(Leaving(0))
    agent.say(offer("w-1", nonce=2))
    story.settle()
    assert told(agent) == 2 * [("slower", "words")]


def test_workers_are_told_what_the_master_waits_for(story: Story) -> None:
    story.min_workers = 2
    agent = story.join("w-1")
    story.settle()
    assert told(agent) == [("no plan", "1 of 2 workers here")]
    story.join("w-2")
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")
    assert len(told(agent)) == 1
    assert told(story.agents["w-2"]) == []


def test_what_is_wrong_with_a_machine_that_is_too_small_is_known_after_it_left(story: Story) -> None:
    """With more memory it is welcome, and hears nothing of the old offer."""
    story.plan = lambda machines: assignments_of()
    story.spare = {"w-1": SpareReason("too small", "it offers 1 MB")}
    agent = story.join("w-1")
    story.settle()
    assert told(agent) == [("too small", "it offers 1 MB")]
    story.spare = {}
    agent.offers = False  # it is gone
    agent.say(Leaving(0))
    story.settle()
    found = story.worker()
    assert (found.state, found.spare, found.why) == ("lost", "too small", "it offers 1 MB")
    agent.say(offer("w-1", nonce=2))
    story.settle()
    assert len(told(agent)) == 1
    assert (story.worker().state, story.worker().spare) == ("spare", "")
    agent.say(Leaving(0))
    story.settle()
    assert (story.worker().state, story.worker().why) == ("lost", "it was stopped there")


def test_workers_beyond_the_most_are_told(story: Story) -> None:
    for number in range(MOST_MACHINES):
        story.join(f"w-{number:03}")
    story.wait_for(lambda: story.ready)
    assert len(story.members()) == MOST_MACHINES
    (spare,) = [agent for agent in story.agents.values() if told(agent)]
    assert told(spare) == [
        ("too many", f"the cluster has {MOST_MACHINES - 1} other workers, and can have no more")
    ]


def test_everybody_hears_of_the_master(story: Story) -> None:
    agent = two_machines(story)
    pulses = [message for message in agent.heard if isinstance(message, MasterPulse)]
    assert pulses[-1].epoch == story.epoch
    story.wait(0.5)
    assert agent.heard[-1] == MasterPulse(story.epoch, "serving", busy=False)
    assert story.root.count(Pulse) > 0


def test_rank_0_gets_ready_as_soon_as_a_worker_offers_itself(story: Story) -> None:
    """Its imports take longer than measuring the link and waiting for others."""
    agent = story.join("w-1")
    story.turn(1)
    assert story.rank_zero.calls == ["warm"]
    assert agent.count(Prepare) == 0
    story.settle()
    warmed = story.rank_zero.calls.count("warm")
    agent.say(offer("w-1", memory_bytes=5))
    story.settle()
    assert story.rank_zero.calls.count("warm") == warmed, "an offer that changes nothing needs no process"


def test_a_process_stands_by_for_the_next_epoch_once_one_has_served_for_a_while(story: Story) -> None:
    two_machines(story)
    calls = story.rank_zero.calls
    calls.clear()
    story.wait(4.0)
    assert calls == []
    story.wait(2.0)
    assert calls == ["warm"]
    story.wait(60.0)
    assert calls == ["warm"], "one that has ended, or for which there is no memory, is not tried for ever"


# --- workers that come and go


def cut(story: Story, name: str = "w-1") -> None:
    """The link breaks; the worker is there again at once."""
    story.hub.deliver(name, None)
    story.wait(3.0)


@pytest.mark.fault("P5", "left out for a while, with the reason")
def test_a_worker_that_is_lost_is_left_out_for_a_while_each_time_for_twice_as_long(story: Story) -> None:
    two_machines(story)
    for longer in (1, 2, 4):
        cut(story)
        assert (story.ready, story.members()) == (True, ("master",))
        assert (story.worker().state, story.worker().spare) == ("left out", "excluded")
        left_s = longer * FIRST_S
        assert left_s - 4.0 < story.worker().left_out_s < left_s
        assert re.fullmatch(r"it was lost: .* \(for another \d+ s\)", story.worker().why)
        story.wait(left_s - 5.0)
        assert story.members() == ("master",)
        story.wait(6.0)
        assert story.members() == ("master", "w-1")
    assert {kind for kind, _ in told(story.agents["w-1"])} == {"excluded"}


@pytest.mark.fault("P5", "taken where nothing serves without it")
def test_a_worker_that_was_lost_is_better_than_none(story: Story) -> None:
    """Where there is no plan without it; and what serves is not ended for it."""
    story.min_workers = 1
    two_machines(story)
    for _ in range(5):
        cut(story)
        assert story.ready
        assert story.members() == ("master", "w-1")
    story.join("w-2")
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")
    cut(story)
    assert story.members() == ("master", "w-2")
    assert story.worker().state == "left out"


def test_a_worker_that_its_user_stops_and_starts_is_not_flapping(story: Story) -> None:
    """What is seen of its end before its last word does not count either."""
    agent = two_machines(story)
    for nonce in range(2, 7):
        story.answer()
        agent.failed("its process ended with status 143")
        story.turn()
        agent.say(Leaving(0))
        story.turn()
        agent.say(offer("w-1", nonce=nonce))
        story.wait(3.0)
        assert story.members() == ("master", "w-1")


def test_no_request_waits_for_ever_for_a_cluster_that_is_planned_again_and_again(story: Story) -> None:
    """A worker whose user starts and stops it is not flapping, and no plan of its coming and going gets ready."""
    story.loads = False
    agent = story.join("w-1")
    waiting = story.submit()
    for nonce in range(2, 40):
        story.settle()
        agent.say(Leaving(0))
        agent.frozen = True
        story.settle()
        agent.frozen = False
        story.hub.deliver("w-1", None)  # the new process has a connection of its own
        agent.say(offer("w-1", nonce=nonce))
    error = failure(waiting)
    assert isinstance(error, NotServing)
    with pytest.raises(NotServing):
        story.submit("r-2")
    story.loads = True
    agent.say(Leaving(0))
    story.settle()
    assert story.ready
    story.answer("r-3")


def test_a_node_that_gives_up_over_another_one_is_not_flapping(story: Story) -> None:
    agent = two_machines(story)
    for _ in range(4):
        story.answer()
        story.node(1, story.epoch).fail("PeerLost", "node 0 was lost during allreduce")
        agent.failed("its process ended with status 3")
        story.wait_for(lambda: not story.ready)
        story.wait_for(lambda: story.ready)
        assert story.members() == ("master", "w-1")


def test_an_honest_offer_after_a_broken_link_counts_however_often_it_breaks(story: Story) -> None:
    """Links of 25 s each: it serves again at once, though it may be flapping."""
    story.min_workers = 1
    two_machines(story)
    for _ in range(12):
        story.hub.deliver("w-1", None)
        story.turn()
        assert not story.ready
        story.wait(2.0)
        assert story.ready
        assert story.members() == ("master", "w-1")
        story.wait(23.0)


def test_a_worker_that_comes_and_goes_does_not_keep_the_others_from_being_planned_for(story: Story) -> None:
    """It does so faster than the master waits for latecomers."""
    story.settle()
    story.join("w-1")
    story.join("w-2")
    before = len(story.planned)
    for _ in range(22):
        story.hub.deliver("w-2", None)
        story.wait(0.1)
    assert any("w-1" in names for names in story.planned[before:])
    for _ in range(100):
        story.hub.deliver("w-2", None)
        story.wait(0.1)
    assert story.ready
    assert story.members() == ("master", "w-1")
    assert story.worker("w-2").why.startswith("it was lost: ")


def test_the_reason_names_who_is_left_out_or_too_small_and_why(story: Story) -> None:
    story.min_workers = 3
    for name in ("w-1", "w-2"):
        story.join(name)
    story.settle()
    roster, now = story.master._roster, story.clock.now()
    roster.step("w-1", WorkerEvent.BREACHED, now, "breach", "the disk is full")
    story.spare = {"w-2": SpareReason("too small", "it offers 1 MB")}
    story.agents["w-2"].offers = False
    story.join("w-3")
    story.settle()
    reason = story.master.status.reason
    assert reason.startswith("2 of 3 workers here; pi is left out: the disk is full (for another ")
    assert reason.endswith("; pi is left out: it offers 1 MB")
    story.agents["w-2"].say(Leaving(0))
    story.settle()
    assert "; pi: it offers 1 MB; pi is left out: the disk is full" in story.master.status.reason
