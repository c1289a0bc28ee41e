"""Stories of a master that loses nodes and machines: how the request ends, and who serves then."""

import re
from collections.abc import Callable

import pytest

from tests.unit.master.players import offer
from tests.unit.master.stories import Story, failure, outcome, paused, two_machines
from tpiedge.errors import PeerLost
from tpiedge.master.journal import GUILTY, Paused, Resumed
from tpiedge.master.pending_answer import PendingAnswer
from tpiedge.master.workers import FIRST_S
from tpiedge.wire.control import AskStats, Finished, Token
from tpiedge.wire.epochs import AskOffer, Launch, Leaving


def test_a_worker_that_goes_silent_while_it_prepares_is_planned_without(story: Story) -> None:
    agent = story.join("w-1")
    agent.prepares = False
    story.settle()
    agent.frozen = True
    story.wait(3.0)
    assert story.members() == ("master",)
    assert story.ready


def test_a_worker_whose_link_breaks_while_it_prepares_is_asked_again(story: Story) -> None:
    """Both the order and its answer may be lost with a link, so the preparation begins anew."""
    agent = story.join("w-1")
    agent.prepares = False
    story.settle()
    agent.prepares = True
    story.hub.deliver("w-1", None)
    story.settle()
    story.settle()
    assert agent.count(AskOffer) >= 1
    story.try_again()
    assert story.members() == ("master", "w-1")


def test_a_worker_lost_while_its_node_starts_ends_the_epoch_and_the_master_serves_alone(story: Story) -> None:
    story.loads = False
    agent = story.join("w-1")
    story.settle()
    assert agent.count(Launch) == 1
    assert not story.ready
    story.loads = True
    agent.frozen = True
    for node in story.nodes.values():
        node.frozen = node.rank == 1
    story.wait(4.0)
    assert story.ready
    assert story.members() == ("master",)


def test_the_user_is_told_of_a_loss_in_plain_words(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    """Numbers and names of classes are for those who debug."""
    caplog.set_level("DEBUG")
    agent = two_machines(story)
    serving = story.epoch
    agent.prepares = False
    story.node(1, serving).fail("ProtocolError", "a part is missing")
    story.settle()
    story.try_again()
    agent.failed("the disk is full")
    story.turn()
    told = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
    assert "stopped serving: node 1 (pi) was lost during the work: a part is missing" in told
    assert "the new plan failed: node 1 (pi) was lost during its preparation: the disk is full" in told
    assert not [line for line in told if "epoch" in line or "PeerLost" in line]
    assert f"epoch {serving} ended: PeerLost" in caplog.messages


def test_an_answer_goes_on_without_the_worker_that_is_lost_and_the_next_one_follows(story: Story) -> None:
    two_machines(story)
    running, waiting = story.submit("r-1"), story.submit("r-2")
    story.turn()
    story.root.token("r-1", 7)
    story.root.token("r-1", 8)
    story.freeze()
    old = story.epoch
    story.wait(3.0)
    assert "silent for" in paused(running)
    assert story.epoch > old
    assert story.root.asked == ["r-1"]
    assert story.root.order("r-1").answer_ids == (7, 8)
    story.root.token("r-1", 9)
    story.root.finish("r-1")
    story.turn()
    still, resumed, third, end = running.events()
    assert isinstance(still, Paused)
    assert re.fullmatch(r"pi was lost: silent for .*; going on without it", still.why)
    assert isinstance(resumed, Resumed)
    assert isinstance(third, Token)
    assert (third.index, third.token) == (2, 9)
    assert isinstance(end, Finished)
    assert end.tokens == 3
    assert story.root.asked == ["r-1", "r-2"]
    story.root.finish("r-2")
    story.turn()
    assert isinstance(outcome(waiting), list)
    (worker,) = [node for node in story.master.status.nodes if node.name == "w-1"]
    assert worker.state == "lost"


@pytest.mark.fault(
    "P1", "an agent's connection that is gone is a loss within two heartbeats, before silence says so"
)
def test_a_machine_whose_connection_is_gone_is_lost_before_its_silence_says_so(story: Story) -> None:
    agent = two_machines(story)
    running = story.submit()
    story.turn()
    agent.frozen = True
    agent.spoke.close()
    story.wait(0.8)
    assert "its process ended or its connection broke" in paused(running)
    assert story.worker().state == "lost"


def test_a_machine_that_says_that_it_leaves_and_goes_has_left(story: Story) -> None:
    agent = two_machines(story)
    agent.say(Leaving(0))
    agent.frozen = True
    agent.spoke.close()
    story.wait(0.8)
    assert story.worker().why == "it was stopped there"


def test_the_end_of_a_nodes_process_is_told_by_its_agent(story: Story) -> None:
    agent = two_machines(story)
    answering = story.submit()
    story.turn()
    agent.failed("its process was killed by SIGKILL")
    story.turn()
    assert "killed by SIGKILL" in paused(answering)
    story.settle()
    assert story.members() == ("master",)
    story.root.finish()
    story.try_again()
    assert story.members() == ("master", "w-1"), "the machine is still there"


def test_a_worker_that_returns_takes_part_again(story: Story) -> None:
    agent = two_machines(story)
    story.freeze()
    story.wait(3.0)
    assert story.members() == ("master",)
    agent.frozen = False
    story.settle()
    assert (story.members(), story.worker().state) == (("master",), "left out")
    story.wait(FIRST_S)
    assert story.members() == ("master", "w-1")


def test_the_death_of_rank_0_is_a_loss_like_any_other(story: Story) -> None:
    two_machines(story)
    answering = story.submit()
    story.turn()
    old = story.epoch
    story.rank_zero.cause = "its process was killed by SIGSEGV"
    story.wait(0.4)
    assert "node 0 (the master) was lost: its process was killed by SIGSEGV" in paused(answering)
    story.settle()
    assert story.ready
    assert story.epoch > old
    story.root.finish()
    story.turn()
    assert isinstance(outcome(answering), list)


def test_an_agent_that_was_started_anew_has_nothing_of_the_old_one(story: Story) -> None:
    agent = two_machines(story)
    old = story.epoch
    agent.say(offer("w-1", nonce=2))
    story.settle()
    story.settle()
    assert story.ready
    assert story.epoch > old


@pytest.mark.parametrize("sender", ["w-1", "node-1.{}", "node-0.{}"])
def test_garbage_loses_its_sender_alone(story: Story, sender: str) -> None:
    two_machines(story)
    answering = story.submit()
    story.turn()
    story.hub.deliver(sender.format(story.epoch), b"\xff\xff")
    story.turn()
    assert "malformed" in paused(answering)
    story.settle()
    story.settle()
    assert story.ready


def test_the_error_names_the_machine_of_the_node(story: Story) -> None:
    agent = two_machines(story)
    answering = story.submit()
    story.turn()
    agent.failed("its process was killed by SIGKILL")
    story.turn()
    assert paused(answering) == "pi was lost: its process was killed by SIGKILL"


# --- whether a request may be at fault


def link_breaks(story: Story) -> None:
    story.hub.deliver("w-1", None)


def nodes_link_breaks(story: Story) -> None:
    story.hub.deliver(f"node-1.{story.epoch}", None)


def lid_is_closed(story: Story) -> None:
    story.freeze()
    story.wait(5.0)
    story.agents["w-1"].frozen = False


def node_freezes(story: Story) -> None:
    story.node(1, story.epoch).frozen = True


def is_stopped(story: Story) -> None:
    """And started again."""
    agent = story.agents["w-1"]
    agent.say(Leaving(0))
    story.turn()
    agent.say(offer("w-1", nonce=story.epoch + 1))


@pytest.mark.parametrize("harm", [link_breaks, nodes_link_breaks, lid_is_closed, node_freezes, is_stopped])
def test_a_loss_in_which_no_node_died_is_no_request_s_fault(
    story: Story, harm: Callable[[Story], None]
) -> None:
    """However often it comes before the first token."""
    story.min_workers = 1
    two_machines(story)
    answering = story.submit()
    for _ in range(2 * GUILTY):
        epoch = story.epoch
        story.turn()
        assert story.root.asked == ["r-1"]
        harm(story)
        story.wait_for(lambda epoch=epoch: story.ready and story.epoch > epoch)
    story.turn()
    story.root.finish()
    story.turn()
    answering_paused_only(answering)


def answering_paused_only(answering: PendingAnswer) -> None:
    """It ends well."""
    events = list(answering.events())
    assert isinstance(events[-1], Finished)
    assert all(isinstance(event, Paused | Resumed | Token) for event in events[:-1])


def test_nodes_that_die_again_and_again_end_no_request_that_gains_tokens(story: Story) -> None:
    """Two in a row without one, then one with one, and so on."""
    story.min_workers = 1
    agent = two_machines(story)
    answering = story.submit()
    for number in range(2 * GUILTY):
        epoch = story.epoch
        story.wait_for(lambda: story.ready and story.root.asked == ["r-1"])
        if number % GUILTY == GUILTY - 1:
            story.root.token()
            story.turn()
        agent.failed("its process was killed by SIGKILL")
        story.wait_for(lambda epoch=epoch: story.ready and story.epoch > epoch)
    story.turn()
    story.root.finish()
    story.turn()
    answering_paused_only(answering)


def test_a_request_under_which_a_workers_node_hangs_again_and_again_fails(story: Story) -> None:
    """Rank 0 waits for it for a minute each time; nobody else would ever be served."""
    story.min_workers = 1
    two_machines(story)
    answering = story.submit()
    hangs = 0
    while not story.master.idle:
        assert hangs < GUILTY
        story.wait_for(lambda: story.ready and story.root.asked == ["r-1"])
        story.wait(60.0)
        hangs += 1
        epoch = story.epoch
        story.root.fail("PeerLost", str(PeerLost(1, "an all-reduce", "alive but without progress for 60 s")))
        story.turn()
        story.rank_zero.cause = "its process ended with status 3"
        story.wait_for(lambda epoch=epoch: story.ready and story.epoch > epoch)
        story.turn()
    assert hangs == GUILTY
    assert "alive but without progress" in str(failure(answering))


# --- machines that may have gone with their node


@pytest.mark.parametrize("since_beat_s", [0.0, 0.1, 0.2])
def test_a_machine_that_went_with_its_node_is_not_planned_with(story: Story, since_beat_s: float) -> None:
    """Its node's link breaks; that its own is broken as well the master does not know yet."""
    agent = two_machines(story)
    story.wait(since_beat_s)
    agent.frozen = True
    before = len(story.planned)
    story.hub.deliver(f"node-1.{story.epoch}", None)
    story.wait(4.0)
    assert set(story.planned[before:]) == {()}
    assert story.members() == ("master",)


def test_a_machine_that_falls_silent_with_its_node_is_not_planned_with(story: Story) -> None:
    """The last that was heard of it is a little younger."""
    agent = two_machines(story)
    story.node(1, story.epoch).frozen = True
    story.wait(0.5)
    agent.frozen = True
    before = len(story.planned)
    story.wait(4.0)
    assert set(story.planned[before:]) == {()}
    assert story.members() == ("master",)


def test_a_machine_whose_node_was_lost_is_planned_with_at_once_where_nothing_serves_without_it(
    story: Story,
) -> None:
    story.min_workers = 1
    two_machines(story)
    old = story.epoch
    story.hub.deliver(f"node-1.{old}", None)
    story.wait(0.3)
    story.turn()
    assert story.ready
    assert story.epoch > old
    assert story.members() == ("master", "w-1")


# --- rank 0 that lives but does not get on


def test_rank_0_that_is_stuck_in_a_request_is_lost(story: Story) -> None:
    two_machines(story)
    running, waiting = story.submit("r-1"), story.submit("r-2")
    story.turn()
    old = story.epoch
    story.wait(60.0)
    assert story.epoch == old
    assert story.ready
    story.wait(3.0)
    assert "node 0 (the master) was lost: alive but without progress in a request for 6" in paused(running)
    story.settle()
    assert story.ready
    assert story.members() == ("master", "w-1"), "no other worker is at fault"
    story.root.finish("r-1")
    story.turn()
    story.root.finish("r-2")
    story.turn()
    assert isinstance(outcome(waiting), list)


def test_what_rank_0_says_of_another_request_keeps_none_going(story: Story) -> None:
    two_machines(story)
    running = story.submit("r-1")
    story.turn()
    for _ in range(3):
        story.wait(25.0)
        story.root.token("r-0")
        story.root.finish("r-0")
    story.wait(1.0)
    assert "without progress in a request" in paused(running)


def a_token(story: Story) -> None:
    story.root.token()


def a_step(story: Story) -> None:
    story.root.step += 1


def a_block(story: Story) -> None:
    story.root.block += 1


def weights(story: Story) -> None:
    story.root.bytes_read += 1


def a_followers_block(story: Story) -> None:
    story.node(1, story.epoch).block += 1


def a_chunk(story: Story) -> None:
    """A chunk of a long prompt, within one block: only rank 0's counters change."""
    story.root.compute_s += 20.0


@pytest.mark.parametrize("advance", [a_token, a_step, a_block, weights, a_followers_block, a_chunk])
def test_a_request_that_gets_on_may_take_as_long_as_it_takes(
    story: Story, advance: Callable[[Story], None]
) -> None:
    """A request in the queue waits as long."""
    two_machines(story)
    answering, waiting = story.submit("r-1"), story.submit("r-2")
    story.turn()
    old = story.epoch
    for _ in range(5):
        story.wait(50.0)
        advance(story)
    assert story.epoch == old
    for name in ("r-1", "r-2"):
        story.root.finish(name)
        story.turn()
    assert isinstance(outcome(answering), list)
    assert isinstance(outcome(waiting), list)


def test_without_a_request_no_node_is_stuck(story: Story) -> None:
    two_machines(story)
    answering = story.submit()
    story.turn()
    story.root.finish()
    story.turn()
    assert isinstance(outcome(answering), list)
    old = story.epoch
    story.wait(200.0)
    assert story.epoch == old
    assert story.root.count(AskStats) == 0
