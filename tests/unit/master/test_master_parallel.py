"""Stories of a master that has several requests answered at once."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.unit.master.stories import SERVED, Story, failure, outcome, paused
from tpiedge.errors import UserError
from tpiedge.wire.control import Assign, Cancel, Shutdown
from tpiedge.wire.epochs import Launch
from tpiedge.wire.requests import GenerationRequest, Sampling

PARALLEL = replace(SERVED, capacity_tokens=256, sequences=3, speculate=4)


@pytest.fixture
def story() -> Iterator[Story]:
    """A story in which three requests run at once."""
    found = Story(PARALLEL, queue_limit=8)
    yield found
    found.master.close()
    found.hub.close()


def test_nodes_are_told_how_many_requests_run_at_once_and_how_long_they_are(story: Story) -> None:
    story.settle()
    (assign,) = [message for message in story.root.heard if isinstance(message, Assign)]
    assert (assign.capacity_tokens, assign.context_tokens) == (256, 64)
    assert (assign.sequences, assign.speculate) == (3, 4)


def test_what_is_wrong_with_a_request_is_its_own_end_alone(story: Story) -> None:
    story.settle()
    unsent = story.master.submit(GenerationRequest("r-0", (1,), 4, Sampling(temperature=float("nan"))))
    refused, cancelled, good = (story.submit(f"r-{number}") for number in (1, 2, 3))
    story.turn()
    assert story.root.asked == ["r-1", "r-2", "r-3"], "the first one's place is free at once"
    story.root.fail("UserError", "too long", "r-1")
    cancelled.cancel()
    story.turn()
    assert [message for message in story.root.heard if isinstance(message, Cancel)] == [
        Cancel(story.epoch, "r-2")
    ]
    story.root.finish("r-2", "cancel")
    story.root.finish("r-3")
    story.turn()
    assert isinstance(failure(unsent), UserError)
    assert isinstance(failure(refused), UserError)
    assert isinstance(outcome(cancelled), list)
    assert isinstance(outcome(good), list)
    assert story.ready


def test_a_wanted_change_of_plans_waits_for_prompts_that_are_read_but_not_for_ever(story: Story) -> None:
    story.settle()
    reading, _ = story.submit("r-0"), story.submit("r-1")
    story.turn()
    alone, agent = story.root, story.join("w-1")
    alone.token("r-1")
    story.settle()
    late = story.submit("r-2")
    story.wait(20.0)
    assert alone.count(Shutdown) == 0
    assert alone.asked == ["r-0", "r-1"], "no other prompt is begun"
    story.wait(15.0)
    assert agent.count(Launch) == 1
    assert story.root.asked == ["r-0", "r-1", "r-2"]
    for name in ("r-0", "r-1", "r-2"):
        story.root.finish(name)
    story.turn()
    assert isinstance(outcome(reading), list)
    assert isinstance(outcome(late), list)


def test_rank_0_is_stuck_where_none_of_its_requests_gets_on(story: Story) -> None:
    story.join("w-1")
    story.settle()
    first, second = story.submit("r-0"), story.submit("r-1")
    story.turn()
    old = story.epoch
    for _ in range(3):
        story.wait(40.0)
        story.root.token("r-1")
    story.root.finish("r-1")
    story.wait(40.0)
    assert story.epoch == old, "what one of them says shows that rank 0 works"
    assert isinstance(outcome(second), list)
    story.wait(30.0)
    assert "without progress in a request" in paused(first)
