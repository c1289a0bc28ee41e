"""Stories of a master: who serves when machines come, go, lie and fail, and how each request ends."""

import itertools
import threading
from collections.abc import Iterator

import pytest

from tests.unit.nodes.stories import FakeAgent, Story, offer, request, seats_of
from tpiedge.errors import Cancelled, InternalError, PeerLost, TpiedgeError, UserError
from tpiedge.nodes.desk import Answering, QueueFull
from tpiedge.nodes.master import NotServing
from tpiedge.transport.endpoint import Envelope
from tpiedge.wire.control import Cancel, Finished, Generate, Pulse, Shutdown, Token
from tpiedge.wire.epochs import (
    AskOffer,
    Echo,
    Launch,
    MasterPulse,
    NodeEnded,
    Prepare,
    Prepared,
    Preparing,
    Release,
)
from tpiedge.wire.join import Refused
from tpiedge.wire.requests import GenerationRequest, Sampling

WAIT_S = 10.0
U_EPOCH = 1_700_000_000


@pytest.fixture
def story() -> Iterator[Story]:
    found = Story()
    yield found
    found.master.close()
    found.hub.close()


def outcome(answering: Answering) -> list[Token | Finished] | TpiedgeError:
    """All events of an answer that has ended, or the error that ended it."""
    try:
        return list(answering.events())  # type: ignore[arg-type]
    except TpiedgeError as error:
        return error


def failure(answering: Answering) -> TpiedgeError:
    found = outcome(answering)
    assert isinstance(found, TpiedgeError)
    return found


def two_machines(story: Story) -> FakeAgent:
    """The master and one worker serve."""
    agent = story.join("w-1")
    story.settle()
    assert story.ready
    assert story.members() == ("master", "w-1")
    return agent


# --- serving


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


# --- a worker joins


def test_the_next_plan_is_prepared_while_the_first_serves_and_taken_between_two_requests(
    story: Story,
) -> None:
    story.settle()
    first, second = story.submit("r-1"), story.submit("r-2")
    story.turn()
    alone = story.root
    agent = story.join("w-1")
    story.settle()
    assert agent.count(Prepare) == 1
    assert agent.count(Launch) == 0, "a request runs"
    assert alone.asked == ["r-1"]

    alone.finish("r-1")
    story.turn()
    assert isinstance(outcome(first), list)
    story.settle()
    assert alone.asked == ["r-1"], "the second request is the new epoch's"
    assert alone.count(Shutdown) == 1
    assert story.members() == ("master", "w-1")
    assert story.root.asked == ["r-2"]
    story.root.finish("r-2")
    story.turn()
    assert isinstance(outcome(second), list)


def test_workers_that_come_together_are_planned_for_together(story: Story) -> None:
    for name in ("w-1", "w-2", "w-3"):
        story.join(name)
        story.wait(0.1)
    story.settle()
    assert story.members() == ("master", "w-1", "w-2", "w-3")
    assert all(agent.count(Prepare) == 1 for agent in story.agents.values())


def test_a_worker_that_comes_during_preparation_changes_the_plan(story: Story) -> None:
    """The first plan is given up by a Release, and its late answer means nothing."""
    first = story.join("w-1")
    first.prepares = False
    story.settle()
    stale = first.order
    assert stale is not None
    story.join("w-2")
    story.settle()
    assert stale.epoch in first.released
    first.say(Prepared(stale.epoch, first.key, 0))
    story.turn()
    assert first.count(Launch) == 0
    first.prepared()
    story.settle()
    assert story.members() == ("master", "w-1", "w-2")


def test_the_same_plan_again_changes_nothing(story: Story) -> None:
    agent = two_machines(story)
    epoch = story.epoch
    agent.say(offer("w-1", memory_bytes=5))
    story.settle()
    assert story.epoch == epoch
    assert agent.count(Prepare) == 1


def test_a_worker_without_a_part_is_spare(story: Story) -> None:
    story.plan = lambda machines: seats_of()
    story.join("w-1")
    story.settle()
    (worker,) = [node for node in story.master.status.nodes if node.name == "w-1"]
    assert (worker.state, worker.rank) == ("spare", None)


def test_everybody_hears_of_the_master(story: Story) -> None:
    agent = two_machines(story)
    pulses = [message for message in agent.heard if isinstance(message, MasterPulse)]
    assert pulses[-1].epoch == story.epoch
    story.wait(0.5)
    assert agent.heard[-1] == MasterPulse(story.epoch, "serving")
    assert story.root.count(Pulse) > 0


# --- losses


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


def test_a_worker_lost_under_a_request_fails_it_in_words_and_the_next_one_is_served(story: Story) -> None:
    agent = two_machines(story)
    running, waiting = story.submit("r-1"), story.submit("r-2")
    story.turn()
    agent.frozen = True
    story.node(1, story.epoch).frozen = True
    old = story.epoch
    story.wait(3.0)
    error = failure(running)
    assert isinstance(error, PeerLost)
    assert "silent for" in str(error)
    assert story.epoch > old
    assert story.root.asked == ["r-2"]
    story.root.finish("r-2")
    story.turn()
    assert isinstance(outcome(waiting), list)
    (worker,) = [node for node in story.master.status.nodes if node.name == "w-1"]
    assert worker.state == "lost"


def test_the_end_of_a_nodes_process_is_told_by_its_agent(story: Story) -> None:
    agent = two_machines(story)
    answering = story.submit()
    story.turn()
    agent.failed("its process was killed by SIGKILL")
    story.turn()
    assert "killed by SIGKILL" in str(failure(answering))
    story.settle()
    assert story.ready
    assert story.members() == ("master", "w-1"), "the machine is still there"


def test_a_worker_that_returns_takes_part_again(story: Story) -> None:
    agent = two_machines(story)
    agent.frozen = True
    story.node(1, story.epoch).frozen = True
    story.wait(3.0)
    assert story.members() == ("master",)
    agent.frozen = False
    story.settle()
    assert story.members() == ("master", "w-1")


def test_the_death_of_rank_0_is_a_loss_like_any_other(story: Story) -> None:
    two_machines(story)
    answering = story.submit()
    story.turn()
    old = story.epoch
    story.rank_zero.cause = "its process was killed by SIGSEGV"
    story.wait(0.4)
    assert "node 0 was lost during the work: its process was killed by SIGSEGV" in str(failure(answering))
    story.settle()
    assert story.ready
    assert story.epoch > old


def test_an_agent_that_was_started_anew_has_nothing_of_the_old_one(story: Story) -> None:
    agent = two_machines(story)
    old = story.epoch
    agent.say(offer("w-1", nonce=2))
    story.settle()
    story.settle()
    assert story.ready
    assert story.epoch > old


@pytest.mark.parametrize("sender", ["w-1", "node-1.{}", "node-0.{}"])
def test_garbage_costs_its_sender_its_place_and_nobody_else(story: Story, sender: str) -> None:
    two_machines(story)
    answering = story.submit()
    story.turn()
    story.hub.deliver(sender.format(story.epoch), b"\xff\xff")
    story.turn()
    assert "malformed" in str(failure(answering))
    story.settle()
    story.settle()
    assert story.ready


# --- failures


def test_a_worker_that_cannot_prepare_is_left_out_for_half_a_minute(story: Story) -> None:
    agent = story.join("w-1")
    agent.prepares = False
    story.settle()
    agent.failed()
    story.settle()
    assert story.members() == ("master",)
    (worker,) = [node for node in story.master.status.nodes if node.name == "w-1"]
    assert worker.state == "left out"
    assert "the disk is full" in worker.why

    agent.prepares = True
    story.wait(27.0)
    assert story.members() == ("master",)
    story.wait(4.0)
    assert story.members() == ("master", "w-1")


def test_a_failed_preparation_does_not_disturb_what_is_served(story: Story) -> None:
    story.settle()
    answering = story.submit()
    agent = story.join("w-1")
    agent.prepares = False
    story.settle()
    agent.failed()
    story.settle()
    story.root.finish()
    story.turn()
    assert isinstance(outcome(answering), list)
    assert story.ready


def test_a_worker_that_lives_but_never_gets_ready_is_left_out_in_the_end(story: Story) -> None:
    """As long as its fetching moves it is waited for."""
    agent = story.join("w-1")
    agent.prepares = False
    story.settle()
    waiting = story.submit()
    story.wait(200.0)
    agent.preparing(done=5)
    story.wait(200.0)
    assert not story.ready
    story.wait(110.0)
    assert story.members() == ("master",)
    story.root.finish()
    story.turn()
    assert isinstance(outcome(waiting), list)


def test_a_node_that_fails_twice_before_it_is_ready_is_planned_without(story: Story) -> None:
    story.loads = False
    agent = story.join("w-1")
    story.settle()
    for _ in range(2):
        story.node(1, story.epoch).fail("OutOfMemory", "node 1 ran out of memory")
        story.settle()
    story.loads = True
    story.wait(3.0)
    assert story.ready
    assert story.members() == ("master",)
    assert agent.count(Launch) == 2


def test_too_few_workers_is_said_at_once(story: Story) -> None:
    story.min_workers = 1
    early = story.submit()
    story.settle()
    assert "0 of 1 workers are here" in str(failure(early))
    assert not story.ready
    assert "0 of 1 workers are here" in story.master.status.reason
    with pytest.raises(NotServing, match="0 of 1 workers are here"):
        story.submit()

    story.join("w-1")
    story.settle()
    assert story.ready
    story.submit()


def test_a_request_that_slips_in_while_nothing_can_be_served_ends_as_well(story: Story) -> None:
    """It was accepted between the look at the state and the state's change."""
    story.min_workers = 1
    story.settle()
    late = story.master._desk.submit(request())
    story.turn(1)
    assert isinstance(failure(late), NotServing)


def test_attempts_that_fail_come_ever_later_until_requests_are_refused(story: Story) -> None:
    story.loads = False
    starts: list[float] = []
    waiting = story.submit()
    seen = 0
    for _ in range(120):
        story.wait(0.1)
        if story.rank_zero.calls.count(f"start {story.epoch}") and story.epoch != seen:
            seen = story.epoch
            starts.append(story.clock.now())
            story.rank_zero.cause = "its process ended with status 1"
    gaps = [later - sooner for sooner, later in itertools.pairwise(starts)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 4.0
    error = failure(waiting)
    assert isinstance(error, NotServing)
    assert "ended with status 1" in str(error)


def test_the_first_epoch_that_serves_ends_the_waiting(story: Story) -> None:
    """Attempts are counted anew after a success."""
    for _ in range(3):
        story.settle()
        assert story.ready
        story.rank_zero.cause = "its process ended with status 1"
        story.wait(0.4)
    story.settle()
    assert story.ready


# --- lies


@pytest.mark.parametrize("key", ["", "x" * 39, "é" * 40, " " * 40])
def test_a_key_that_is_none_is_a_failed_preparation(story: Story, key: str) -> None:
    agent = story.join("w-1")
    agent.prepares = False
    story.settle()
    agent.prepared(key)
    story.settle()
    assert story.ready
    assert story.members() == ("master",)


def test_nobody_gets_another_ones_key_admitted_under_his_nodes_name(story: Story) -> None:
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
    error = failure(answering)
    assert "it gave up, because" in str(error)
    assert str(error).isprintable()
    story.settle()
    assert story.ready


def test_a_followers_token_is_no_token(story: Story) -> None:
    two_machines(story)
    answering = story.submit()
    story.turn()
    story.node(1, story.epoch).token()
    story.turn()
    assert "not a node's to send" in str(failure(answering))


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
    story.settle()
    assert story.members() == ("master", "w-1")


def test_a_flood_does_not_keep_the_master_from_its_work(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody sends faster than the master reads: its turns end all the same."""
    two_machines(story)
    flood = Envelope("w-1", Preparing(1, 1, 2, 3.0))
    with monkeypatch.context() as patch:
        patch.setattr(story.hub, "recv", lambda wait_s: flood)
        story.clock.advance(0.4)
        story.master.turn()
    assert story.master.status.nodes[1].why == "it floods the master with messages"


def test_strangers_speak_with_the_door_alone(story: Story) -> None:
    story.hub.admission.admit("k" * 40, "w-guest")
    story.hub.spoke("w-guest").send(offer("w-guest"))
    story.settle()
    assert [peer for peer, _ in story.door.said] == ["w-guest"]
    assert story.planned[-1] == ()


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


def test_a_revoked_worker_is_told_and_its_epoch_ends(story: Story) -> None:
    agent = two_machines(story)
    story.door.members.discard("w-1")
    story.master.forget("w-1")
    story.turn()
    assert any(isinstance(message, Refused) and message.kind == "revoked" for message in agent.heard)
    story.settle()
    assert story.members() == ("master",)
    assert [node.name for node in story.master.status.nodes] == ["master"]


def test_what_an_epoch_took_is_given_back(story: Story) -> None:
    """Nodes of ended epochs have no place at the hub."""
    agent = story.join("w-1")
    for _ in range(5):
        story.settle()
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


def test_more_workers_than_an_epoch_can_have_are_spare(story: Story) -> None:
    for number in range(130):
        story.join(f"w-{number}")
    story.turn()
    story.wait(0.5)
    assert len(story.planned[-1]) == 127


# --- with its thread


def test_the_thread_serves_and_ends(story: Story) -> None:
    story.clock.advance(10.0)
    story.master.start(U_EPOCH)
    deadline = threading.Event()
    while story.rank_zero.epoch is None:
        story.hub.wake()
        deadline.wait(0.001)
    node = story.node(0, story.rank_zero.epoch)
    assert story.rank_zero.epoch == U_EPOCH
    answering = story.submit()
    node.hello()
    while "r-1" not in node.asked:
        envelope = node.spoke.recv(WAIT_S)
        assert envelope is not None
        node.heard.append(envelope.message)
        node.answer(envelope.message)
    assert isinstance(node.heard[-1], Generate)
    node.finish()
    assert isinstance(outcome(answering), list)
    story.master.close()
    assert story.master.failed is None


def test_a_defect_of_the_thread_fails_every_request(story: Story) -> None:
    def broken(machines: object) -> str:
        raise ZeroDivisionError("planner")

    story.plan = broken
    waiting = story.submit()
    story.clock.advance(10.0)
    story.master.start(U_EPOCH)
    error = failure(waiting)
    assert isinstance(error, InternalError)
    assert "ZeroDivisionError" in str(error)
    with pytest.raises(NotServing):
        story.submit()
    assert story.master.failed is error


def test_a_hub_that_is_closed_first_ends_the_thread_in_order(story: Story) -> None:
    story.clock.advance(10.0)
    waiting = story.submit()
    story.master.start(U_EPOCH)
    story.hub.close()
    assert isinstance(failure(waiting), TpiedgeError)
    story.master.close()
    assert story.rank_zero.calls[-1] == "close"


def test_requests_and_cancels_from_many_threads_all_end(story: Story) -> None:
    """Every submit is answered exactly once, whatever the others do."""
    story.clock.advance(10.0)
    story.master.start(U_EPOCH)
    ended: list[object] = []

    def ask(worker: int) -> None:
        for number in range(20):
            try:
                answering = story.submit(f"r-{worker}-{number}")
            except TpiedgeError as error:
                ended.append(error)
                continue
            if number % 2:
                answering.cancel()
            ended.append(outcome(answering))

    threads = [threading.Thread(target=ask, args=(worker,)) for worker in range(4)]
    while story.rank_zero.epoch is None:
        story.hub.wake()
    node = story.node(0, U_EPOCH)
    node.hello()
    for thread in threads:
        thread.start()
    answered = 0
    while any(thread.is_alive() for thread in threads):
        envelope = node.spoke.recv(0.05)
        if envelope is not None:
            node.heard.append(envelope.message)
            node.answer(envelope.message)
        for name in node.asked[answered:]:
            answered += 1
            node.finish(name)
    for thread in threads:
        thread.join()
    assert len(ended) == 80
