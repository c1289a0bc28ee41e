"""Stories of a master that serves: requests, their order and their ends."""

import pytest

from tests.unit.master.players import offer
from tests.unit.master.stories import Story, failure, outcome, two_machines
from tpiedge.errors import Cancelled, UserError
from tpiedge.master.master import NotServing
from tpiedge.master.request_queue import QueueFull
from tpiedge.planner.capacity import MOST_MACHINES
from tpiedge.wire.control import Cancel, Finished, Token
from tpiedge.wire.epochs import Leaving, Release
from tpiedge.wire.requests import GenerationRequest, Sampling


def test_a_master_alone_serves(story: Story) -> None:
    assert not story.ready
    story.settle()
    assert story.ready
    assert story.members() == ("master",)
    answering = story.submit()
    story.turn()
    assert story.root.asked == ["r-1"]
    story.root.token()
    story.root.finish()
    story.turn()
    found = outcome(answering)
    assert isinstance(found, list)
    assert [type(event) for event in found] == [Token, Finished]
    assert story.master.idle


def test_what_rank_0_has_chosen_is_shown_while_it_serves(story: Story) -> None:
    story.settle()
    assert story.master.status.collective == "", "a node alone adds nothing up"
    story.join("w-1")
    story.settle()
    status = story.master.status
    shown = (status.collective, status.bulk_collective, status.collective_why)
    assert shown == ("mesh", "two-shot", "measured")
    story.freeze()
    story.wait_for(lambda: not story.ready or story.members() == ("master",))
    assert story.master.status.collective == ""


def test_requests_are_served_one_after_the_other_in_their_order(story: Story) -> None:
    story.settle()
    answers = [story.submit(f"r-{number}") for number in range(3)]
    story.turn()
    assert story.root.asked == ["r-0"]
    assert (story.master.status.queued, story.master.status.running) == (2, 1)
    for number in range(3):
        story.root.finish(f"r-{number}")
        story.turn()
    assert story.root.asked == ["r-0", "r-1", "r-2"]
    assert all(isinstance(outcome(answer), list) for answer in answers)


def test_a_request_that_comes_before_anything_serves_waits(story: Story) -> None:
    answering = story.submit()
    story.settle()
    story.root.finish()
    story.turn()
    assert isinstance(outcome(answering), list)


def test_the_queue_has_an_end(story: Story) -> None:
    for number in range(4):
        story.submit(f"r-{number}")
    with pytest.raises(QueueFull, match="4 requests are waiting"):
        story.submit("r-4")


def test_a_request_that_cannot_be_sent_fails_alone(story: Story) -> None:
    """A number that no message can carry is the caller's mistake, not the end of the master."""
    story.settle()
    bad = story.master.submit(GenerationRequest("r-bad", (1,), 4, Sampling(temperature=float("nan"))))
    good = story.submit("r-good")
    story.turn()
    assert isinstance(failure(bad), UserError)
    story.root.finish("r-good")
    story.turn()
    assert isinstance(outcome(good), list)


def test_what_rank_0_refuses_is_the_users_error_and_the_cluster_goes_on(story: Story) -> None:
    story.settle()
    answering = story.submit()
    story.turn()
    story.root.fail("UserError", "the prompt is too long", "r-1")
    story.turn()
    assert isinstance(failure(answering), UserError)
    assert story.ready


# --- cancelling, draining, closing


def test_a_waiting_request_is_cancelled_at_once(story: Story) -> None:
    story.settle()
    running, waiting = story.submit("r-1"), story.submit("r-2")
    story.turn()
    waiting.cancel()
    assert isinstance(failure(waiting), Cancelled)
    story.root.finish()
    story.turn()
    assert isinstance(outcome(running), list)
    assert story.root.asked == ["r-1"]


def test_a_running_request_is_cancelled_by_rank_0(story: Story) -> None:
    story.settle()
    answering = story.submit()
    story.turn()
    answering.cancel()
    answering.cancel()
    story.turn()
    assert Cancel(story.epoch, "r-1") in story.root.heard
    story.root.finish(reason="cancel")
    story.turn()
    (event,) = outcome(answering)  # type: ignore[misc]
    assert isinstance(event, Finished)
    assert event.reason == "cancel"
    answering.cancel()


def test_a_drained_master_serves_what_it_has_accepted(story: Story) -> None:
    story.settle()
    running, waiting = story.submit("r-1"), story.submit("r-2")
    story.turn()
    story.master.drain()
    with pytest.raises(NotServing, match="shutting down"):
        story.submit("r-3")
    for name in ("r-1", "r-2"):
        assert not story.master.idle
        story.root.finish(name)
        story.turn()
    assert isinstance(outcome(running), list)
    assert isinstance(outcome(waiting), list)
    assert story.master.idle


def test_the_epoch_of_a_revoked_worker_ends(story: Story) -> None:
    two_machines(story)
    story.door.members.discard("w-1")
    story.master.forget("w-1")
    story.settle()
    assert story.members() == ("master",)
    assert [node.name for node in story.master.status.nodes] == ["master"]


def test_what_an_epoch_took_is_given_back(story: Story) -> None:
    """Nodes of ended epochs have no place at the hub."""
    agent = story.join("w-1")
    for _ in range(5):
        story.settle()
        agent.say(Leaving(0))
        agent.say(offer("w-1", nonce=story.epoch + 10))
        story.settle()
    assert story.epoch > 4
    assert set(story.hub.peers) <= {"w-1", f"node-0.{story.epoch}", f"node-1.{story.epoch}"}
    assert len(story.hub.admission.admitted) == 3


def test_closing_ends_requests_nodes_and_agents(story: Story) -> None:
    agent = two_machines(story)
    answering = story.submit()
    story.turn()
    story.master.close()
    assert isinstance(failure(answering), Cancelled)
    agent.listen()
    assert agent.heard[-1] == Release(story.epoch)
    assert story.rank_zero.calls[-1] == "close"
    with pytest.raises(NotServing):
        story.submit()


def test_a_hub_that_is_closed_first_leaves_nothing_undone(story: Story) -> None:
    two_machines(story)
    answering = story.submit()
    story.hub.close()
    story.master.turn()
    story.master.close()
    assert isinstance(failure(answering), Cancelled)
    assert story.rank_zero.calls[-1] == "close"


def test_more_workers_than_a_plan_can_have_are_spare(story: Story) -> None:
    for number in range(MOST_MACHINES + 3):
        story.join(f"w-{number}")
    story.turn()
    story.wait(0.5)
    assert len(story.planned[-1]) == MOST_MACHINES - 1
