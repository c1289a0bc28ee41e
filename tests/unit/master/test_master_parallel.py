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


def shown(story: Story) -> tuple[int, int]:
    """How many requests run and wait, as the status says."""
    return story.master.status.running, story.master.status.queued


def test_nodes_are_told_how_many_requests_run_at_once_and_how_long_they_are(story: Story) -> None:
    story.settle()
    (assign,) = [message for message in story.root.heard if isinstance(message, Assign)]
    assert (assign.capacity_tokens, assign.context_tokens) == (256, 64)
    assert (assign.sequences, assign.speculate) == (3, 4)


def test_as_many_requests_run_as_may_and_the_next_ones_wait_for_the_first_that_ends(story: Story) -> None:
    story.settle()
    answers = [story.submit(f"r-{number}") for number in range(4)]
    story.turn()
    assert story.root.asked == ["r-0", "r-1", "r-2"]
    assert shown(story) == (3, 1)
    story.root.token("r-2")
    story.root.finish("r-1")
    story.turn()
    assert story.root.asked == ["r-0", "r-1", "r-2", "r-3"]
    assert shown(story) == (3, 0)
    for name in ("r-3", "r-0", "r-2"):
        story.root.finish(name)
    story.turn()
    found = [outcome(answer) for answer in answers]
    assert [len(events) for events in found if isinstance(events, list)] == [1, 1, 2, 1]
    assert story.master.idle


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


def test_after_a_loss_all_that_ran_go_on_and_those_that_wait_follow(story: Story) -> None:
    story.join("w-1")
    story.settle()
    answers = [story.submit(f"r-{number}") for number in range(5)]
    story.turn()
    story.freeze()
    story.wait(3.0)
    assert story.root.asked == ["r-0", "r-1", "r-2"]
    assert shown(story) == (3, 2)
    for number in range(5):
        story.root.token(f"r-{number}")
        story.root.finish(f"r-{number}")
        story.turn()
    assert all(isinstance(outcome(answer), list) for answer in answers)
    totals = story.master.status.totals
    assert (totals.finished, totals.failed, totals.resumed) == (5, 0, 3)
    assert totals.paused_s > 0


@pytest.mark.fault("P18", "the change of plans comes in the middle of answers, which go on")
def test_a_wanted_change_of_plans_pauses_the_answers_that_run_and_they_go_on(story: Story) -> None:
    story.settle()
    answers = [story.submit("r-0"), story.submit("r-1")]
    story.turn()
    alone, agent = story.root, story.join("w-1")
    alone.token("r-0")
    alone.token("r-1")
    story.settle()
    assert agent.count(Launch) == 1
    assert alone.count(Shutdown) == 1
    assert story.members() == ("master", "w-1")
    assert [paused(answer) for answer in answers] == ["a new plan begins"] * 2
    assert story.root.asked == ["r-0", "r-1"]
    assert [len(story.root.order(name).answer_ids) for name in ("r-0", "r-1")] == [1, 1]
    for name in ("r-0", "r-1"):
        story.root.finish(name)
    story.turn()
    assert all(isinstance(outcome(answer), list) for answer in answers)


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
