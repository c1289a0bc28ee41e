"""Stories of a master that is lied to, flooded, or spoken to by those who have no say."""

import itertools
from collections.abc import Sequence

import pytest

from tests.unit.master.players import offer
from tests.unit.master.stories import Story, outcome, paused, two_machines
from tpiedge.launch.bootstrap import control_name
from tpiedge.launch.timing import Timing
from tpiedge.master.assignments import Assignment
from tpiedge.master.master import NotServing
from tpiedge.master.roster import Machine
from tpiedge.master.workers import FIRST_S
from tpiedge.transport.endpoint import Envelope
from tpiedge.wire.control import Connect
from tpiedge.wire.epochs import (
    AgentPulse,
    AskOffer,
    Echo,
    Launch,
    MasterPulse,
    NodeEnded,
    Preparing,
    Probe,
    Spare,
)

#: Messages of a flood for each message of another peer, and how many the master reads in a turn.
_FLOOD, _BURST = 25, 500


@pytest.mark.parametrize("key", ["", "x" * 39, "é" * 40, " " * 40])
def test_a_key_that_is_none_is_a_failed_preparation(story: Story, key: str) -> None:
    agent = story.join("w-1")
    agent.prepares = False
    story.settle()
    agent.prepared(key)
    story.settle()
    assert story.ready
    assert story.members() == ("master",)


def test_no_worker_gets_the_key_of_another_admitted_for_its_own_node(story: Story) -> None:
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


def test_two_workers_cannot_have_one_key(story: Story) -> None:
    first, second = story.join("w-1"), story.join("w-2")
    second.prepares = False
    story.settle()
    second.prepared(first.key)
    story.settle()
    assert story.members() == ("master", "w-1")


def test_a_cause_that_fills_a_message_does_not_end_the_master(story: Story) -> None:
    """The master adds words of its own before it passes it on; and nothing of it reaches a terminal unchecked."""
    agent = two_machines(story)
    answering = story.submit()
    story.turn()
    story.node(1, story.epoch).fail("PeerLost", "\x1b[2J" + "x" * 4090)
    story.turn()
    agent.failed("y" * 4096)
    story.turn()
    why = paused(answering)
    assert "it gave up, because" in why
    assert why.isprintable()
    story.settle()
    assert story.ready


def test_a_followers_token_is_no_token(story: Story) -> None:
    two_machines(story)
    answering = story.submit()
    story.turn()
    story.node(1, story.epoch).token()
    story.turn()
    assert "not a node's to send" in paused(answering)


@pytest.mark.fault("W5", "what a node of an earlier epoch says to the master is dropped")
def test_messages_of_an_epoch_that_is_over_are_dropped(story: Story) -> None:
    agent = two_machines(story)
    old = story.node(0, story.epoch)
    old_epoch = story.epoch
    story.rank_zero.cause = "gone"
    story.settle()
    answering = story.submit()
    story.turn()
    old.finish()
    agent.say(NodeEnded(old_epoch, "", "released"))
    story.turn()
    assert story.ready
    story.root.finish()
    story.turn()
    assert isinstance(outcome(answering), list)


def test_a_worker_that_was_forgotten_for_a_moment_is_not_thrown_out(story: Story) -> None:
    """What it says of its epoch after it was lost is a reason to ask for its offer, not to cut its link."""
    agent = story.join("w-1")
    agent.prepares = False
    story.settle()
    agent.frozen = True
    story.wait(2.0)
    agent.frozen, agent.prepares = False, True
    agent.preparing()
    agent.say(NodeEnded(1, "", "x"))
    agent.say(Echo(0, 77, b""))
    story.turn(2)
    assert story.door.said == []
    story.try_again()
    assert story.members() == ("master", "w-1")


def test_a_flood_does_not_keep_the_master_from_its_work(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker sends without end, faster than the master reads: every turn of the master ends all the same, and
    another worker joins and serves meanwhile."""
    two_machines(story)
    heard_before = story.hub.recv
    counter = itertools.count()

    def flooded(_wait_s: float) -> Envelope | None:
        others = heard_before(0.0) if next(counter) % _FLOOD == 0 else None
        return others or Envelope("w-1", Preparing(1, 1, 2, 3.0))

    with monkeypatch.context() as patch:
        patch.setattr(story.hub, "recv", flooded)
        patch.setattr("tpiedge.master.reception._BURST", _BURST)
        story.join("w-2")
        story.wait(2.0)
        assert story.ready
        assert story.members() == ("master", "w-2")
        story.answer()
    assert "it floods the master with messages" in story.worker("w-1").why


def test_a_crowd_that_sends_faster_than_it_is_heard_holds_no_heartbeat_up(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No peer of it floods by itself."""
    agent = two_machines(story)

    def next_of_the_crowd(_wait_s: float) -> Envelope:
        story.clock.advance(0.001)  # which handling it takes, on a busy machine
        return Envelope("w-1", AgentPulse(0))

    with monkeypatch.context() as patch:
        patch.setattr(story.hub, "recv", next_of_the_crowd)
        patch.setattr("tpiedge.master.reception.FLOOD", 1 << 30)
        began, told = story.clock.now(), agent.count(MasterPulse)
        for _ in range(20):
            story.master.turn()
            agent.listen()
        each_s = (story.clock.now() - began) / (agent.count(MasterPulse) - told)
    assert each_s < 2 * Timing().heartbeat_s


def test_the_message_that_is_one_too_many_has_no_effect(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = two_machines(story)
    with monkeypatch.context() as patch:
        patch.setattr("tpiedge.master.reception.FLOOD", story.master._reception._traffic["w-1"] + 1)
        agent.say(offer("w-1", threads=77))
        story.turn()
    assert story.worker("w-1").threads != 77


def unplannable(story: Story, *names: str) -> None:
    """Makes the planner fail for the workers `names`; with "" it always fails."""
    plan = story.plan

    def fails(machines: tuple[Machine, ...]) -> tuple[Assignment, ...] | str:
        if {"", *(machine.name for machine in machines)}.intersection(names):
            story.planned.append(("failed",))
            raise OverflowError("cannot convert float infinity to integer")
        return plan(machines)

    story.plan = fails


def test_a_worker_whose_numbers_break_the_planner_is_left_out_and_the_others_serve(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    two_machines(story)
    unplannable(story, "w-2")
    breaker = story.join("w-2")
    story.join("w-3")
    story.settle()
    story.settle()
    assert story.members() == ("master", "w-1", "w-3")
    story.answer()
    assert story.worker("w-2").state == "left out"
    why = "its numbers break the planner: the planner fails (OverflowError: cannot convert float infinity to integer)"
    assert why in story.worker("w-2").why
    assert [why in message.why for message in breaker.heard if isinstance(message, Spare)] == [True]
    assert f"w-2 is left out of plans: {why}" in caplog.text
    planned = len(story.planned)
    story.wait(20.0)
    assert len(story.planned) == planned, "it is not tried again and again"
    story.wait(FIRST_S)
    assert planned < len(story.planned) < planned + 10
    assert story.members() == ("master", "w-1", "w-3")


def test_a_planner_that_always_fails_is_a_reason_and_no_end(story: Story) -> None:
    unplannable(story, "")
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


@pytest.mark.parametrize("nonces", [[1], range(2, 10_000)], ids=["one start", "many starts"])
def test_an_agent_that_keeps_changing_its_offer_forces_few_plans(story: Story, nonces: Sequence[int]) -> None:
    """And the others' plans are made as soon as ever."""
    agent = two_machines(story)
    offers = zip(itertools.count(1), itertools.cycle(nonces), strict=False)
    story.planned.clear()
    for memory_bytes, nonce in itertools.islice(offers, 600):
        agent.say(offer("w-1", nonce=nonce, memory_bytes=memory_bytes))
        story.wait(0.1)
    assert len(story.planned) < 40
    story.planned.clear()
    for memory_bytes, nonce in itertools.islice(offers, 1200):
        agent.say(offer("w-1", nonce=nonce, memory_bytes=memory_bytes))
        story.wait(0.1)
    assert len(story.planned) < 12
    story.join("w-2")
    story.settle()
    assert "w-2" in story.members()


def test_the_latest_offer_of_a_worker_that_changed_it_too_often_counts_when_it_is_time(story: Story) -> None:
    agent = two_machines(story)
    agent.offers = False
    for threads in range(3, 20):
        agent.say(offer("w-1", threads=threads))
        story.turn()
    assert story.worker("w-1").threads < 19
    asked = agent.count(AskOffer)
    story.wait(FIRST_S)
    assert agent.count(AskOffer) == asked + 1
    agent.say(offer("w-1", threads=19))
    story.settle()
    assert story.worker("w-1").threads == 19


def test_an_offer_that_says_nothing_new_costs_nothing(story: Story) -> None:
    agent = two_machines(story)
    story.planned.clear()
    probes = agent.count(Probe)
    for _ in range(100):
        agent.say(offer("w-1"))
        story.wait(0.1)
    assert story.planned == []
    assert agent.count(Probe) == probes
    agent.say(offer("w-1", threads=77))
    story.settle()
    assert story.worker("w-1").threads == 77


def test_a_node_that_says_that_it_listens_elsewhere_sends_nobody_there(story: Story) -> None:
    story.hub.addresses |= {control_name(1, epoch): "192.0.2.7" for epoch in range(1, 9)}
    story.join("w-1")
    story.join("w-2")
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")
    (told,) = [message for message in story.node(2, story.epoch).heard if isinstance(message, Connect)]
    assert dict(told.endpoints) == {0: "tcp://127.0.0.1:7071", 1: "tcp://192.0.2.7:7072"}


def test_strangers_speak_with_the_door_alone(story: Story) -> None:
    story.hub.admission.admit("k" * 40, "w-guest")
    story.hub.spoke("w-guest").send(offer("w-guest"))
    story.settle()
    assert [peer for peer, _ in story.door.said] == ["w-guest"]
    assert story.planned[-1] == ()
