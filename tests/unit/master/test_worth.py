"""When a faster plan takes the place of one that serves: the rule, and a master that keeps it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.master.players import offer
from tests.unit.master.stories import SERVED, Story, assignments_of, paused, request, two_machines
from tpiedge.master.pending_answer import PendingAnswer
from tpiedge.master.switching import Worth
from tpiedge.master.workers import WorkerEvent
from tpiedge.wire.requests import GenerationRequest

_SECONDS = st.lists(st.floats(0.0, 10.0), min_size=1, max_size=50)


@given(_SECONDS, st.floats(0.01, 0.99), st.floats(1.5, 100.0))
def test_no_more_is_lost_by_waiting_than_the_pause_costs_and_one_look(
    waits: list[float], gain: float, pause_s: float
) -> None:
    """So whatever comes afterwards, at most twice the least is lost."""
    worth, now = Worth(), 100.0
    assert not worth.reached(3, now, gain, pause_s)
    for wait in waits:
        before_s = (now - 100.0) * gain
        now += wait
        lost_s = (now - 100.0) * gain
        if worth.reached(3, now, gain, pause_s):
            assert before_s - 1e-6 <= pause_s <= lost_s + 1e-6
            return
        assert lost_s <= pause_s + 1e-6


@pytest.mark.parametrize("gain", [0.0, -0.5])
def test_a_plan_that_does_not_come_for_its_speed_is_not_kept_waiting(gain: float) -> None:
    assert Worth().reached(1, 5.0, gain, 1000.0)


def test_another_plan_begins_anew() -> None:
    worth = Worth()
    worth.reached(1, 0.0, 0.5, 1.5)
    assert not worth.reached(2, 60.0, 0.5, 1.5)
    assert not worth.reached(2, 62.0, 0.5, 1.5)
    assert worth.reached(2, 63.0, 0.5, 1.5)
    assert worth.reached(2, 64.0, 0.5, 1e9), "what was worth it stays so, though answers grow"


# --- in a master


def long_request(name: str = "r-1") -> GenerationRequest:
    return GenerationRequest(name, tuple(range(1, 101)), 30)


def serving_one(story: Story, reading_s: float) -> PendingAnswer:
    """A request runs whose prompt took so long; each machine makes the cluster faster."""
    story.step_s = lambda machines: 1.0 / (1 + len(machines))
    two_machines(story)
    answering = story.master.submit(long_request())
    story.turn()
    story.wait(reading_s)
    for _ in range(2):
        story.root.token()
        story.turn()
    return answering


def test_a_faster_plan_waits_until_it_is_worth_the_pause() -> None:
    story = Story(replace(SERVED, sequences=2))
    answering = serving_one(story, reading_s=3.0)
    epoch = story.epoch
    story.join("w-2")
    story.wait(10.0)  # a third of the time is saved, which makes up for 1.5 s and 3 s after 13.5 s
    assert story.epoch == epoch
    assert story.worker("w-2").state == "prepared"
    assert story.master.status.reason == "a faster plan waits until it is worth the pause"
    story.master.submit(request("r-2"))
    story.turn()
    assert story.root.asked[-1] == "r-2", "others begin meanwhile"
    story.root.finish("r-2")
    story.wait(6.0)
    assert story.members() == ("master", "w-1", "w-2")
    assert paused(answering) == "a new plan begins"


def test_the_first_worker_is_worth_waiting_for_too(story: Story) -> None:
    """The master alone serves meanwhile."""
    story.step_s = lambda machines: 1.0 / (1 + len(machines))
    story.settle()
    story.master.submit(long_request())
    story.turn()
    story.wait(3.0)
    for _ in range(2):
        story.root.token()
        story.turn()
    story.join("w-1")
    story.wait(5.0)
    assert story.members() == ("master",)
    story.wait(6.0)
    assert story.members() == ("master", "w-1")


def test_a_faster_plan_does_not_wait_where_nobody_asks(story: Story) -> None:
    serving_one(story, reading_s=3.0)
    story.join("w-2")
    story.wait(3.0)
    assert story.members() == ("master", "w-1")
    story.root.finish("r-1")
    story.wait(1.0)
    assert story.members() == ("master", "w-1", "w-2")


@pytest.mark.parametrize("planned", [1000, 1001])
def test_a_plan_for_a_worker_with_less_memory_than_its_node_may_take_does_not_wait(planned: int) -> None:
    """Though it is predicted to be a little faster; where the node fits, it waits."""
    story = Story(replace(SERVED, sequences=2))
    found = assignments_of("w-1")
    story.plan = lambda _machines: (found[0], replace(found[1], planned_bytes=planned))
    answering = serving_one(story, reading_s=3.0)
    epoch = story.epoch
    story.step_s = lambda _machines: 0.4
    story.plan = lambda _machines: tuple(replace(one, threads=1) for one in found)
    story.agents["w-1"].say(offer("w-1", memory_bytes=1000))
    story.wait(3.0)
    assert (story.epoch != epoch) == (planned > 1000)
    if planned > 1000:
        assert paused(answering) == "a new plan begins"
        assert story.members() == ("master", "w-1")


def test_a_plan_without_a_worker_that_is_not_to_serve_any_more_does_not_wait(story: Story) -> None:
    serving_one(story, reading_s=3.0)
    story.step_s = lambda machines: 1.0 / (2 + len(machines))
    roster, now = story.master._roster, story.clock.now()
    roster.step("w-1", WorkerEvent.BREACHED, now, "breach", "it is strange")
    story.join("w-2")
    story.join("w-3")
    story.settle()
    assert story.members() == ("master", "w-2", "w-3")
