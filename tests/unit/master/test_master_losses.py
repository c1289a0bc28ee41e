from collections.abc import Callable

import pytest

from tests.unit.master.players import offer
from tests.unit.master.stories import Story, failure, outcome, paused, two_machines
from tpiedge.errors import PeerLost, TpiedgeError
from tpiedge.master.journal import POISON_AFTER
from tpiedge.transport.endpoint import Envelope
from tpiedge.wire.epochs import Leaving


def test_loss_log_messages_omit_internals(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    """Numbers and names of classes are for those who debug."""
    caplog.set_level("DEBUG")
    agent = two_machines(story)
    serving = story.epoch
    agent.prepares = False
    story.node(1, serving).fail("ProtocolError", "a part is missing")
    story.settle()
    story.master.clear_worker("w-1")
    story.settle()
    agent.failed("the disk is full")
    story.turn()
    told = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
    assert "stopped serving: node 1 (pi) was lost during the work: a part is missing" in told
    assert "the new plan failed: node 1 (pi) was lost during its preparation: the disk is full" in told
    assert not [line for line in told if "epoch" in line or "PeerLost" in line]
    assert f"epoch {serving} ended: PeerLost" in caplog.messages


@pytest.mark.fault(
    "P1", "an agent's connection that is gone is a loss within two heartbeats, before silence says so"
)
def test_closed_connection_is_a_loss_before_the_silence_timeout(story: Story) -> None:
    agent = two_machines(story)
    running = story.asked()
    agent.frozen = True
    agent.spoke.close()
    story.wait(0.8)
    assert "its process ended or its connection broke" in paused(running)
    assert story.worker().state == "lost"


def test_machine_that_announced_leaving_counts_as_stopped(story: Story) -> None:
    agent = two_machines(story)
    agent.say(Leaving(0))
    agent.frozen = True
    agent.spoke.close()
    story.wait(0.8)
    assert story.worker().why == "its user stopped it"


@pytest.mark.parametrize("sender", ["w-1", "node-1.{}", "node-0.{}"])
def test_malformed_message_loses_only_its_sender(story: Story, sender: str) -> None:
    two_machines(story)
    answering = story.asked()
    story.hub.deliver(sender.format(story.epoch), b"\xff\xff")
    story.turn()
    assert "malformed" in paused(answering)
    story.settle()
    story.settle()
    assert story.ready


def lid_is_closed(story: Story) -> None:
    story.freeze()
    story.wait(5.0)
    story.agents["w-1"].frozen = False


def is_stopped(story: Story) -> None:
    agent = story.agents["w-1"]
    agent.say(Leaving(0))
    story.turn()
    agent.say(offer(nonce=story.epoch + 1))


@pytest.mark.parametrize(
    "harm",
    [
        lambda story: story.hub.deliver("w-1", None),
        lambda story: story.hub.deliver(f"node-1.{story.epoch}", None),
        lambda story: setattr(story.node(1, story.epoch), "frozen", True),
        lid_is_closed,
        is_stopped,
    ],
    ids=["link breaks", "node's link breaks", "node freezes", "lid is closed", "is stopped"],
)
def test_loss_without_a_node_death_is_not_blamed_on_a_request(
    story: Story, harm: Callable[[Story], None]
) -> None:
    story.min_workers = 1
    two_machines(story)
    answering = story.submit()
    for _ in range(2 * POISON_AFTER):
        epoch = story.epoch
        story.turn()
        assert story.root.asked == ["r-1"]
        harm(story)
        story.wait_for(lambda epoch=epoch: story.ready and story.epoch > epoch)
    story.turn()
    story.finish()
    assert not isinstance(outcome(answering), TpiedgeError)


def test_request_that_repeatedly_hangs_a_node_fails(story: Story) -> None:
    """Rank 0 waits for the node for a minute each time; no other request would ever be served."""
    story.min_workers = 1
    two_machines(story)
    answering = story.submit()
    hangs = 0
    while not story.master.requests.idle:
        assert hangs < POISON_AFTER
        story.wait_for(lambda: story.ready and story.root.asked == ["r-1"])
        story.wait(60.0)
        hangs += 1
        epoch = story.epoch
        story.root.fail("PeerLost", str(PeerLost(1, "an all-reduce", "alive but without progress for 60 s")))
        story.turn()
        story.rank_zero.cause = "its process ended with status 3"
        story.wait_for(lambda epoch=epoch: story.ready and story.epoch > epoch)
        story.turn()
    assert hangs == POISON_AFTER
    assert "alive but without progress" in str(failure(answering))


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
    story.finish("r-1")
    story.finish("r-2")
    assert isinstance(outcome(waiting), list)


STALL_S = 5.0


def crowd(story: Story) -> list[str]:
    names = [f"w-{number}" for number in range(1, 4)]
    for name in names:
        story.join(name)
    story.settle()
    assert story.ready
    return names


def test_messages_received_during_a_stall_prevent_losses(story: Story) -> None:
    crowd(story)
    recv: Callable[[float], Envelope | None] = story.hub.recv

    def stalled(wait_s: float) -> Envelope | None:
        if wait_s > 0:
            story.clock.advance(STALL_S)
        return recv(0.0)

    for agent in story.agents.values():
        agent.pulse()
    epoch = story.epoch
    story.hub.recv = stalled  # type: ignore[method-assign]
    story.master.turn()
    assert recv(0.0) is None
    assert (story.epoch, story.ready) == (epoch, True)


def test_messages_still_in_transit_after_a_stall_are_waited_for(story: Story) -> None:
    names = crowd(story)
    epoch = story.epoch
    story.clock.advance(STALL_S)
    story.turn()
    story.wait(1.0)
    assert (story.epoch, story.ready) == (epoch, True)
    assert story.members() == ("master", *names)


def test_worker_silent_during_a_stall_is_still_lost(story: Story) -> None:
    two_machines(story)
    story.freeze()
    story.clock.advance(STALL_S)
    story.turn()
    assert story.members() == ("master", "w-1")
    story.wait(0.4)
    story.settle()
    assert story.members() == ("master",)
