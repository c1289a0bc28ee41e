import itertools
from collections.abc import Callable

import pytest

from tests.unit.master.players import offer
from tests.unit.master.stories import Story, outcome, paused, two_machines
from tpiedge.launch.bootstrap import Timing
from tpiedge.master.assignments import Assignment
from tpiedge.master.reconciler import NotServing
from tpiedge.master.roster import Machine
from tpiedge.transport.endpoint import Envelope
from tpiedge.wire.control import Breach, Listening
from tpiedge.wire.epochs import AgentPulse, Launch, MasterPulse, NodeEnded, Preparing

#: Messages of a flood for each message of another peer, and how many the master reads in a turn.
_FLOOD, _BURST = 25, 500


def test_worker_cannot_reuse_another_workers_key_for_its_node(story: Story) -> None:
    """Public keys are no secrets: with a worker's key a liar could take its name away."""
    victim = story.join("w-1")
    liar = story.join("w-2")
    victims_key = story.hub.admission.key_of("w-1")
    assert victims_key is not None
    liar.prepares = False
    story.settle()
    liar.prepared(victims_key)
    story.settle()
    assert story.members() == ("master", "w-1")
    assert story.hub.admission.key_of("w-1") == victims_key
    assert victim.count(Launch) == 1


def test_overlong_failure_cause_does_not_crash_the_master(story: Story) -> None:
    """The master adds words of its own before it passes it on; and nothing of it reaches a terminal unchecked."""
    agent = two_machines(story)
    answering = story.asked()
    story.node(1, story.epoch).fail("PeerLost", "\x1b[2J" + "x" * 4090)
    story.turn()
    agent.failed("y" * 4096)
    story.turn()
    why = paused(answering)
    assert "it gave up, because" in why
    assert why.isprintable()
    story.settle()
    assert story.ready


@pytest.mark.fault(
    "W2", "a node or an agent that breaks the protocol is left out; the answer comes without it"
)
@pytest.mark.fault("W11", "the node that rank 0 reports is left out; the answer comes without it")
@pytest.mark.parametrize(
    ("breach", "words"),
    [
        (lambda _, node, root: node.say(Listening(node.epoch, 1, "tcp://1.2.3.4:5")), "it listens, where"),
        (lambda _, node, root: node.spoke.send_frame(b"junk"), "malformed"),
        (lambda _, node, root: node.token(), "it sent Token, which is not a node's to send"),
        (lambda _, node, root: root.say(Breach(node.epoch, 0, 1, "node 1 sent a NaN")), "node 1 sent a NaN"),
        (lambda agent, *_: agent.say(Launch(1)), "it sent Launch, which is not a worker's to send"),
        (lambda agent, *_: agent.spoke.send_frame(b"junk"), "malformed"),
    ],
)
def test_worker_breaking_protocol_is_left_out(trio: Story, breach: Callable[..., None], words: str) -> None:
    answering = trio.asked()
    breach(trio.agents["w-1"], trio.node(1, trio.epoch), trio.root)
    trio.wait_for(lambda: trio.ready and trio.members() == ("master", "w-2"))
    trio.finish()
    assert isinstance(outcome(answering), list)
    trio.join("w-1")  # comes again at once
    trio.settle()
    assert trio.members() == ("master", "w-2")
    left_out = trio.worker("w-1")
    assert words in left_out.why
    assert left_out.left_out_s > 200.0  # a lost worker waits for 30 s first


@pytest.mark.fault("W5", "what a node of an earlier epoch says to the master is dropped")
def test_messages_of_an_epoch_that_is_over_are_dropped(story: Story) -> None:
    agent = two_machines(story)
    old = story.node(0, story.epoch)
    old_epoch = story.epoch
    story.rank_zero.cause = "gone"
    story.settle()
    answering = story.asked()
    old.finish()
    agent.say(NodeEnded(old_epoch, "released"))
    story.turn()
    assert story.ready
    story.finish()
    assert isinstance(outcome(answering), list)


@pytest.mark.fault("W2", "who floods the master is left out; meanwhile another worker joins and serves")
def test_flooding_worker_is_left_out_and_the_master_keeps_serving(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_machines(story)
    heard_before = story.hub.recv
    counter = itertools.count()

    def flooded(_wait_s: float) -> Envelope | None:
        others = heard_before(0.0) if next(counter) % _FLOOD == 0 else None
        return others or Envelope("w-1", Preparing(1, 1, 2, 3.0))

    with monkeypatch.context() as patch:
        patch.setattr(story.hub, "recv", flooded)
        patch.setattr("tpiedge.master.master._BURST", _BURST)
        story.join("w-2")
        story.wait(2.0)
        assert story.ready
        assert story.members() == ("master", "w-2")
        story.answer()
    assert "it floods the master with messages" in story.worker("w-1").why


def test_heartbeats_are_sent_while_messages_arrive_too_fast(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = two_machines(story)

    def next_of_the_crowd(_wait_s: float) -> Envelope:
        story.clock.advance(0.001)  # which handling it takes, on a busy machine
        return Envelope("w-1", AgentPulse(0))

    with monkeypatch.context() as patch:
        patch.setattr(story.hub, "recv", next_of_the_crowd)
        patch.setattr("tpiedge.master.master.FLOOD", 1 << 30)
        began, told = story.clock.now(), agent.count(MasterPulse)
        for _ in range(20):
            story.master.turn()
            agent.listen()
        each_s = (story.clock.now() - began) / (agent.count(MasterPulse) - told)
    assert each_s < 2 * Timing().heartbeat_s


def test_failing_planner_is_reported_and_not_fatal(story: Story) -> None:
    def fails(machines: tuple[Machine, ...]) -> tuple[Assignment, ...] | str:
        story.planned.append(("failed",))
        raise OverflowError("cannot convert float infinity to integer")

    story.plan = fails
    story.join("w-1")
    story.settle()
    assert not story.ready
    assert "the planner fails (OverflowError" in story.master.status.reason
    assert "the planner fails" in story.worker("w-1").why
    planned = len(story.planned)
    story.wait(60.0)
    assert len(story.planned) == planned
    with pytest.raises(NotServing, match="the planner fails"):
        story.submit()


def test_unknown_peer_messages_reach_only_the_registrar(story: Story) -> None:
    story.hub.admission.admit("k" * 40, "w-unknown")
    story.hub.spoke("w-unknown").send(offer())
    story.settle()
    assert [peer for peer, _ in story.registrar.said] == ["w-unknown"]
    assert story.planned[-1] == ()
