from dataclasses import replace

import pytest

from tests.unit.master.stories import Story, assignments_of, failure, outcome, two_machines
from tpiedge.errors import Cancelled
from tpiedge.master.assignments import Assignment
from tpiedge.master.reconciler import NotServing
from tpiedge.planner.capacity import MOST_MACHINES
from tpiedge.wire.epochs import Release


def test_a_drained_master_serves_what_it_has_accepted(story: Story) -> None:
    story.settle()
    running, waiting = story.submit("r-1"), story.submit("r-2")
    story.turn()
    story.master.drain()
    with pytest.raises(NotServing, match="shutting down"):
        story.submit("r-3")
    for name in ("r-1", "r-2"):
        assert not story.master.requests.idle
        story.finish(name)
    assert isinstance(outcome(running), list)
    assert isinstance(outcome(waiting), list)
    assert story.master.requests.idle


def test_closing_ends_requests_nodes_and_agents(story: Story) -> None:
    agent = two_machines(story)
    answering = story.asked()
    story.master.close()
    assert isinstance(failure(answering), Cancelled)
    agent.listen()
    assert agent.heard[-1] == Release(story.epoch)
    assert story.rank_zero.calls[-1] == "close"
    with pytest.raises(NotServing):
        story.submit()


def test_more_workers_than_a_plan_can_have_are_spare(story: Story) -> None:
    for number in range(MOST_MACHINES + 3):
        story.join(f"w-{number}")
    story.turn()
    story.wait(0.5)
    assert len(story.planned[-1]) == MOST_MACHINES - 1
    story.settle()
    assert story.worker(f"w-{MOST_MACHINES}").spare == "too many"


GIB = 1 << 30


def of_own(story: Story, planned_bytes: int) -> tuple[Assignment, ...]:
    own, *others = assignments_of(*story.agents)
    return replace(own, planned_bytes=planned_bytes, weight_bytes=planned_bytes), *others


def test_without_a_plan_the_machine_gives_all_that_it_may(story: Story) -> None:
    """Its node was killed for want of memory, and three quarters of it hold no share."""
    story.plan = lambda _machines: (
        of_own(story, 4 * GIB) if story.rank_zero.memory_bytes >= 4 * GIB else "too little"
    )
    two_machines(story)
    serving = story.epoch
    story.rank_zero.usable_bytes, story.rank_zero.memory_bytes = 4 * GIB, 3 * GIB
    story.rank_zero.cause = "it ran out of memory"
    story.wait(2.0)
    assert story.rank_zero.memory_bytes == 4 * GIB
    assert story.epoch > serving
    assert story.ready
