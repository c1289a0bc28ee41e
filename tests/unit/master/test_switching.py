from dataclasses import replace

import pytest

from tests.unit.master.players import offer
from tests.unit.master.stories import SERVED, Story, assignments_of, paused, request, two_machines
from tpiedge.master.journal import PendingAnswer
from tpiedge.wire.requests import GenerationRequest


def long_request(name: str = "r-1") -> GenerationRequest:
    return GenerationRequest(name, tuple(range(1, 101)), 30)


def serving_one(story: Story, reading_s: float) -> PendingAnswer:
    story.step_s = lambda machines: 1.0 / (1 + len(machines))
    two_machines(story)
    answering = story.master.submit(long_request())
    story.turn()
    story.wait(reading_s)
    for _ in range(2):
        story.root.token()
        story.turn()
    return answering


def test_faster_plan_waits_until_gain_exceeds_pause() -> None:
    story = Story(replace(SERVED, sequences=2))
    answering = serving_one(story, reading_s=3.0)
    epoch = story.epoch
    story.join("w-2")
    story.wait(10.0)  # a third of the time is saved, which makes up for 1.5 s and 3 s after 13.5 s
    assert story.epoch == epoch
    assert story.worker("w-2").state == "prepared"
    assert story.master.status.reason == "a faster plan waits until it makes up for the pause"
    story.master.submit(request("r-2"))
    story.turn()
    assert story.root.asked[-1] == "r-2", "others begin meanwhile"
    story.root.finish("r-2")
    story.wait(6.0)
    assert story.members() == ("master", "w-1", "w-2")
    assert paused(answering) == "switching to a new plan"


@pytest.mark.parametrize("planned", [1000, 1001])
def test_plan_over_lowered_worker_memory_is_replaced_at_once(planned: int) -> None:
    """The new plan is predicted to be a little faster; where the node fits, it waits."""
    story = Story(replace(SERVED, sequences=2))
    found = assignments_of("w-1")
    story.plan = lambda _machines: (found[0], replace(found[1], planned_bytes=planned))
    answering = serving_one(story, reading_s=3.0)
    epoch = story.epoch
    story.step_s = lambda _machines: 0.4
    story.plan = lambda _machines: tuple(replace(one, threads=1) for one in found)
    story.agents["w-1"].say(offer(memory_bytes=1000))
    story.wait(3.0)
    assert (story.epoch != epoch) == (planned > 1000)
    if planned > 1000:
        assert paused(answering) == "switching to a new plan"
        assert story.members() == ("master", "w-1")
