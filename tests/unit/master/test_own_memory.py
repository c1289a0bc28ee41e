"""The master's own machine gives less or more memory while it is used."""

from dataclasses import replace

import pytest

from tests.unit.master.stories import Story, assignments_of, two_machines
from tests.unit.master.test_placement import arranged, machine, placement
from tpiedge.master.assignments import Assignment

GIB = 1 << 30


def of_own(story: Story, planned_bytes: int) -> tuple[Assignment, ...]:
    """A plan that gives the master's node so much."""
    own, *others = assignments_of(*story.agents)
    return replace(own, planned_bytes=planned_bytes, weight_bytes=planned_bytes), *others


def test_less_memory_leads_to_a_plan_that_waits_for_nothing(story: Story) -> None:
    story.plan = lambda _machines: of_own(story, 4 * GIB)
    two_machines(story)
    serving = story.epoch
    story.submit()
    story.turn()
    story.root.token("r-1", 7)
    story.turn()
    story.step_s = lambda _machines: 1.0  # no faster
    story.plan = lambda _machines: of_own(story, 2 * GIB)
    story.rank_zero.memory_bytes = 3 * GIB
    story.wait(1.0)
    assert story.own_memory == [3 * GIB]
    assert story.epoch > serving
    assert story.ready


def test_where_nothing_changes_no_plan_is_made(story: Story) -> None:
    two_machines(story)
    story.wait(1.0)
    planned = len(story.planned)
    story.wait(30.0)
    assert (len(story.planned), story.own_memory) == (planned, [])


@pytest.mark.parametrize("wants_memory", [True, False])
def test_without_a_plan_for_want_of_it_the_machine_gives_all_that_it_may(
    story: Story, wants_memory: bool
) -> None:
    """Its node was killed for want of memory, and three quarters of it hold no share. Where a worker is missing, more
    of it would be of no use."""
    story.wants_memory = wants_memory
    story.plan = lambda _machines: (
        of_own(story, 4 * GIB) if story.rank_zero.memory_bytes >= 4 * GIB else "too little"
    )
    two_machines(story)
    serving = story.epoch
    story.rank_zero.usable_bytes, story.rank_zero.memory_bytes = 4 * GIB, 3 * GIB
    story.rank_zero.cause = "it ran out of memory"
    story.wait(2.0)
    assert story.own_memory == ([3 * GIB, 4 * GIB] if wants_memory else [3 * GIB])
    assert (story.epoch > serving and story.ready) is wants_memory


def test_a_placement_follows_the_memory() -> None:
    place = placement()
    ann = machine("ann")
    before = arranged(place((ann,), ()))
    assert before.assignments[0].memory_bytes != 3 * GIB
    place.give(3 * GIB)
    found = arranged(place((ann,), ()))
    assert found.assignments[0].memory_bytes == 3 * GIB
    line = place.arrangement(found, (ann,))
    assert place.placed(found, (ann,), line, line.own, line.shares(line.own)) is not None
