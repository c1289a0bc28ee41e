import re

import pytest

from tests.unit.master.players import FakeAgent, offer
from tests.unit.master.stories import Story, assignments_of, outcome, two_machines
from tpiedge.master.workers import FIRST_S
from tpiedge.planner.capacity import SpareReason
from tpiedge.wire.control import Pulse, Shutdown
from tpiedge.wire.epochs import Launch, MasterPulse, Prepare, Spare


@pytest.mark.fault("P18", "plans change between two requests")
def test_next_plan_is_prepared_while_the_current_one_serves(story: Story) -> None:
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
        story.finish(name)
        assert isinstance(outcome(answering), list)
    assert alone.asked == ["r-1"]


def test_workers_joining_together_share_one_plan(story: Story) -> None:
    for name in ("w-1", "w-2", "w-3"):
        story.join(name)
        story.wait(0.1)
    story.settle()
    assert story.members() == ("master", "w-1", "w-2", "w-3")
    assert all(agent.count(Prepare) == 1 for agent in story.agents.values())


def fetching(story: Story, total: int) -> FakeAgent:
    """Nothing is served yet; w-1 is prepared, w-2 has fetched one byte of so many."""
    story.join("w-1")
    slow = story.join("w-2")
    slow.prepares = False
    story.settle()
    slow.preparing(1, total)
    return slow


def test_start_does_not_wait_for_a_slow_fetching_worker(story: Story) -> None:
    slow = fetching(story, 100)
    story.wait_for(lambda: story.ready, 5.0)
    assert story.members() == ("master", "w-1")
    assert told(slow) == [("fetching", "its weights take long to fetch, so the others start without it")]
    assert slow.count(Prepare) == 2, "it goes on while the others serve"
    story.answer()
    slow.prepared()
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")


def test_plan_waits_for_required_worker_that_fetches_slowly(story: Story) -> None:
    story.min_workers = 2
    slow = fetching(story, 1000)
    story.wait(20.0)
    assert not story.ready
    assert slow.count(Prepare) == 1, "it is not disturbed"
    slow.prepared()
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")


def told(agent: FakeAgent) -> list[tuple[str, str]]:
    return [(message.kind, message.why) for message in agent.heard if isinstance(message, Spare)]


def test_spare_worker_gets_its_reason_only_on_change(story: Story) -> None:
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
    agent.say(offer(memory_bytes=5))
    story.settle()
    assert story.members() == ("master", "w-1")
    assert len(told(agent)) == 1
    story.plan, story.spare = lambda machines: assignments_of(), slow
    agent.say(offer(memory_bytes=6))
    story.settle()
    assert told(agent) == 2 * [("slower", "2 s with it, 1 s without it")]


def test_master_pulse_says_at_rest_only_while_idle(story: Story) -> None:
    def hears(*, at_rest: bool) -> None:
        story.settle()
        pulses = [message for message in agent.heard if isinstance(message, MasterPulse)]
        assert pulses[-1] == MasterPulse(story.epoch, at_rest)

    story.min_workers, agent = 2, story.join("w-1")
    hears(at_rest=False)  # nothing is ready
    story.join("w-2")
    hears(at_rest=True)
    assert story.root.count(Pulse) > 0
    story.submit()
    hears(at_rest=False)
    story.finish()
    hears(at_rest=True)
    story.join("w-3").prepares = False  # another plan is under way
    hears(at_rest=False)


def cut(story: Story, name: str = "w-1") -> None:
    story.hub.deliver(name, None)
    story.wait(3.0)


@pytest.mark.fault("P5", "left out for a while, with the reason")
def test_lost_worker_wait_doubles_with_each_loss(story: Story) -> None:
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
def test_lost_worker_is_reused_if_plan_needs_it(story: Story) -> None:
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
