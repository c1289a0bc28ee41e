"""Stories of a master whose attempts fail: who is left out, when it is tried again, what requests are told."""

import itertools
import re
from collections.abc import Callable

import pytest

from tests.unit.master.players import FakeAgent
from tests.unit.master.stories import Story, assignments_of, failure, outcome, request, two_machines
from tpiedge.errors import PeerLost, ResourceError
from tpiedge.master.assignments import Assignment
from tpiedge.master.journal import GUILTY
from tpiedge.master.master import RECOVERY_GRACE_S, NotServing
from tpiedge.master.roster import Machine
from tpiedge.master.workers import FIRST_S, LONGEST_DUE_S
from tpiedge.wire.control import Token
from tpiedge.wire.epochs import Launch, Leaving, NodeEnded, Prepare


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


def test_one_that_is_left_out_is_tried_again_at_once_when_its_user_wants_that(story: Story) -> None:
    agent = story.join("w-1")
    agent.prepares = False
    for longer in (1, 2):
        story.settle()
        agent.failed()
        story.settle()
        assert (story.members(), story.worker().state) == (("master",), "left out")
        assert (longer - 1) * FIRST_S < story.worker().left_out_s <= longer * FIRST_S
        agent.prepares = longer == 2
        story.master.clear_worker("w-1")
        story.master.clear_worker("nobody")
    story.settle()
    assert story.members() == ("master", "w-1")
    assert [event.machine for event in story.master.events if event.kind == "cleared"] == 2 * ["pi"]
    story.master.clear_worker("w-1")
    story.settle()
    assert [event.kind for event in story.master.events].count("cleared") == 2


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


def others_share(machines: tuple[Machine, ...]) -> tuple[Assignment, ...]:
    """The more machines there are, the further back is each one's part."""
    return assignments_of(*(one.name for one in reversed(machines)))


def test_what_serves_goes_on_where_a_worker_of_it_cannot_prepare_another_part(story: Story) -> None:
    """That is tried again ever later, and at once where what serves cannot go on."""
    story.plan = others_share
    agent = two_machines(story)
    epoch, answering = story.epoch, story.submit()
    story.turn()
    agent.prepares = False
    story.join("w-2")
    failed: list[float] = []
    for _ in range(3):
        story.wait_for(lambda: agent.count(Prepare) > 1 + len(failed), limit_s=200.0)
        agent.failed()
        failed.append(story.clock.now())
        story.settle()
        assert (story.epoch, story.members()) == (epoch, ("master", "w-1"))
        assert "the disk is full" in story.worker("w-2").why
        story.root.finish()
        story.turn()
    assert isinstance(outcome(answering), list)
    gaps = [round(later - sooner) for sooner, later in itertools.pairwise(failed)]
    assert gaps == [30, 60]

    story.freeze("w-1", 1)
    story.wait(10.0)
    assert story.members() == ("master", "w-2")


def test_a_worker_that_cannot_prepare_another_part_binds_nobody_to_a_plan_that_is_to_end(
    story: Story,
) -> None:
    story.plan = others_share
    for name in ("w-1", "w-2", "w-3"):
        story.join(name)
    story.settle()
    story.agents["w-1"].prepares = False
    story.master.drain_worker("w-3")
    story.wait_for(lambda: story.agents["w-1"].count(Prepare) > 1)
    story.agents["w-1"].failed()
    story.wait(3.0)
    assert story.members() == ("master", "w-2")


def test_a_plan_that_fails_is_tried_ever_later_while_another_serves_and_at_once_after_a_loss(
    story: Story,
) -> None:
    """A drained worker computes until the others can do without it, and one of them cannot prepare its part."""
    story.min_workers = 2
    for name in ("w-1", "w-2", "w-3"):
        story.join(name)
    story.settle()
    story.answer()
    epoch, agent = story.epoch, story.agents["w-1"]
    agent.prepares = False
    story.master.drain_worker("w-3")
    failed: list[float] = []
    for _ in range(300):
        if agent.count(Prepare) > 1 + len(failed):
            agent.failed()
            failed.append(story.clock.now())
        story.wait(0.1)
    gaps = [later - sooner for sooner, later in itertools.pairwise(failed)]
    assert [round(gap) for gap in gaps[:5]] == [0, 2, 4, 8, 10]
    assert (story.epoch, story.ready) == (epoch, True)

    agent.prepares = True
    story.rank_zero.cause = "its process ended with status 1"
    story.wait(LONGEST_DUE_S)
    story.settle()
    assert (story.ready, story.members()) == (True, ("master", "w-1", "w-2"))


def test_a_worker_that_lives_but_never_gets_ready_is_left_out_in_the_end(story: Story) -> None:
    """As long as its fetching moves it is waited for where it is needed."""
    story.min_workers = 1
    agent = story.join("w-1")
    agent.prepares = False
    story.settle()
    story.wait(200.0)
    agent.preparing(done=5)
    story.wait(200.0)
    assert story.worker().state == "fetching"
    assert agent.count(Prepare) == 1
    story.wait(102.0)
    assert agent.count(Prepare) == 2, "it alone can serve"
    story.join("w-2")
    story.settle()
    assert story.members() == ("master", "w-2")
    assert story.worker("w-1").state == "left out"
    assert "no progress for 300 s" in story.worker("w-1").why


def test_a_node_that_fails_before_it_is_ready_is_planned_without(story: Story) -> None:
    story.loads = False
    agent = story.join("w-1")
    story.settle()
    story.loads = True
    story.node(1, story.epoch).fail("OutOfMemory", "node 1 ran out of memory")
    story.wait(3.0)
    assert (story.ready, story.members(), story.worker().state) == (True, ("master",), "left out")
    assert agent.count(Launch) == 1


def test_a_worker_that_gives_up_at_every_start_does_not_keep_the_others_from_serving(story: Story) -> None:
    """They load for longer than it is left out."""
    story.step_s = lambda machines: 1 / (1 + len(machines))
    story.loads = False
    for name in ("w-1", "w-2"):
        story.join(name)
    waiting = story.submit()
    began: dict[int, float] = {}
    for _ in range(1000):
        story.wait(0.1)
        if story.ready:
            break
        loading_s = story.clock.now() - began.setdefault(story.epoch, story.clock.now())
        if "w-1" in story.members() and loading_s >= 3.0:
            over_rank_0 = str(PeerLost(0, "connecting", "its port cannot be reached"))
            story.node(1, story.epoch).fail("PeerLost", over_rank_0)
            story.turn()
            story.agents["w-1"].say(NodeEnded(story.epoch, "", "its process ended with status 1"))
        elif story.members() == ("master", "w-2") and loading_s >= 1.5 * FIRST_S:
            for rank in range(2):
                story.node(rank, story.epoch).ready()
    assert (story.epoch, story.members()) == (2, ("master", "w-2"))
    story.root.finish()
    story.turn()
    assert isinstance(outcome(waiting), list)
    story.loads = True
    story.settle()
    assert story.members() == ("master", "w-1", "w-2"), "its wait is over, and nothing begins any more"


def test_too_few_workers_is_said_at_once(story: Story) -> None:
    story.min_workers = 1
    early = story.submit()
    story.settle()
    assert "0 of 1 worker here" in str(failure(early))
    assert not story.ready
    assert "0 of 1 worker here" in story.master.status.reason
    with pytest.raises(NotServing, match="0 of 1 worker here"):
        story.submit()
    story.turn(1)
    assert story.master.status.totals.refused == 1

    story.join("w-1")
    story.settle()
    assert story.ready
    story.submit()


def test_a_request_that_slips_in_while_nothing_can_be_served_ends_as_well(story: Story) -> None:
    """It was accepted between the look at the state and the state's change."""
    story.min_workers = 1
    story.settle()
    late = story.master._requests.submit(request())
    story.turn(1)
    assert isinstance(failure(late), NotServing)


def test_the_first_answer_ends_the_waiting(story: Story) -> None:
    """Retries are counted anew after a success."""
    for _ in range(5):
        story.settle()
        assert story.ready
        story.answer()
        story.rank_zero.cause = "its process ended with status 1"
        story.wait(0.4)
    story.settle()
    assert story.ready


def away(story: Story, harm: Callable[[], None], up_s: float = 1.0) -> float:
    """For how many seconds nothing serves after the harm, which comes once a session was ready for `up_s`."""
    story.wait(up_s)
    assert story.ready
    begun, epoch = story.clock.now(), story.epoch
    harm()
    story.wait_for(lambda: story.ready and story.epoch > epoch)
    return story.clock.now() - begun


def kill(story: Story, name: str) -> Callable[[], None]:
    """Its node."""
    return lambda: story.agents[name].failed("its process was killed by SIGKILL")


def test_nodes_of_different_workers_that_die_one_after_the_other_make_nobody_wait(story: Story) -> None:
    """A plan follows at once, and requests that come meanwhile are accepted."""
    story.min_workers = 1
    names = ("w-1", "w-2", "w-3")
    for name in names:
        story.join(name)
    story.settle()
    for name in (*names, *names[:2]):
        if name not in story.members():
            continue  # it waits
        assert away(story, kill(story, name)) <= 0.5
        assert not story.master._reconciler.hopeless
    assert story.ready


def test_a_worker_without_which_nothing_serves_is_tried_ever_later_when_its_node_dies_again_and_again(
    story: Story,
) -> None:
    """Whoever comes meanwhile ends the wait, and it is left out."""
    story.min_workers = 1
    two_machines(story)
    pauses = [int(away(story, kill(story, "w-1"))) for _ in range(6)]
    assert pauses == [0, 2, 4, 8, 10, 10]
    story.wait(1.0)
    kill(story, "w-1")()
    story.turn()
    story.wait(1.0)
    reason = story.master.status.reason
    killed = "node 1 (pi) was lost during the work: its process was killed by SIGKILL"
    assert re.fullmatch(rf"{re.escape(killed)}; it is tried again after (9\.\d|10\.0) s", reason), reason
    story.submit("r-1")
    story.join("w-2")
    story.settle()
    assert (story.ready, story.members()) == (True, ("master", "w-2"))


def test_a_worker_whose_node_dies_again_and_again_is_left_out_at_once_where_others_serve(
    story: Story,
) -> None:
    for name in ("w-1", "w-2"):
        story.join(name)
    story.settle()
    for longer in (1, 2, 4):
        assert away(story, kill(story, "w-1")) <= 0.5
        assert story.members() == ("master", "w-2")
        story.wait(longer * FIRST_S - 3.0)
        assert story.members() == ("master", "w-2")
        story.wait(4.0)
        assert story.members() == ("master", "w-1", "w-2")


def test_a_worker_that_was_tried_later_and_proves_itself_is_tried_at_once_again(story: Story) -> None:
    story.min_workers = 1
    two_machines(story)
    for _ in range(4):
        away(story, kill(story, "w-1"))
    story.answer()
    assert [int(away(story, kill(story, "w-1"))) for _ in range(3)] == [0, 2, 4]


def test_rank_0_that_dies_again_and_again_makes_everybody_wait_ever_longer(story: Story) -> None:
    two_machines(story)

    def die() -> None:
        story.rank_zero.cause = "its process was killed by SIGSEGV"

    assert [int(away(story, die)) for _ in range(5)] == [0, 2, 4, 8, 10]


def test_requests_wait_for_lost_machines_as_long_as_they_are_to(story: Story) -> None:
    story.min_workers = 1
    agent = two_machines(story)
    running = story.submit("r-1")
    story.turn()
    story.freeze()
    story.wait(3.0)
    assert not story.ready
    assert "0 of 1 worker here" in story.master.status.reason
    late = story.submit("r-2")
    story.wait(RECOVERY_GRACE_S - 5)
    agent.frozen = False
    story.settle()
    assert story.root.asked == ["r-1"]
    for name in ("r-1", "r-2"):
        story.root.finish(name)
        story.turn()
    assert isinstance(outcome(running), list)
    assert isinstance(outcome(late), list)


def test_requests_of_an_earlier_master_wait_for_its_workers(story: Story) -> None:
    """Those that come meanwhile wait behind them, once their readers have come again."""
    story.min_workers = 1
    old = story.master.resume(request("old"), [Token(0, "old", 0, 5, ())])
    old.attend(True)
    story.wait(RECOVERY_GRACE_S - 5)
    new = story.submit("new")
    story.join("w-1")
    story.settle()
    assert story.root.asked == ["old"]
    for name in ("old", "new"):
        story.root.finish(name)
        story.turn()
    assert isinstance(outcome(old), list)
    assert isinstance(outcome(new), list)


def test_requests_of_an_earlier_master_fail_once_the_grace_is_over(story: Story) -> None:
    story.min_workers = 1
    old = story.master.resume(request("old"), [])
    story.wait(RECOVERY_GRACE_S + 5)
    assert "0 of 1 worker here" in str(failure(old))


def test_the_grace_begins_when_nothing_can_serve_whatever_took_long_before(story: Story) -> None:
    """A worker is lost, the plan without it loads for longer than the grace, and then its last worker is lost."""
    story.min_workers = 1
    for name in ("w-1", "w-2"):
        story.join(name)
    story.settle()
    running = story.submit("r-1")
    story.turn()
    story.loads = False
    story.freeze("w-2", 2)
    story.wait(RECOVERY_GRACE_S + 10)
    story.freeze("w-1", 1)
    story.loads = True
    story.wait(RECOVERY_GRACE_S - 10)
    assert not story.master._reconciler.hopeless
    story.agents["w-1"].frozen = False
    story.settle()
    story.root.finish()
    story.turn()
    assert isinstance(outcome(running), list)


def test_requests_wait_where_machines_are_lost_while_a_plan_takes_over(story: Story) -> None:
    story.min_workers = 1
    agent = two_machines(story)
    running = story.submit("r-1")
    story.turn()
    story.root.token()
    story.loads = False
    story.join("w-2")
    story.settle()
    assert not story.ready
    for name, rank in (("w-1", 1), ("w-2", 2)):
        story.freeze(name, rank)
    story.wait(10.0)
    story.loads = True
    agent.frozen = False
    story.settle()
    story.root.finish()
    story.turn()
    assert isinstance(outcome(running), list)


def test_workers_that_are_stopped_by_their_users_are_no_request_s_fault(story: Story) -> None:
    for name in ("w-1", "w-2", "w-3", "w-4"):
        story.join(name)
    story.settle()
    running = story.submit("r-1")
    for name in ("w-1", "w-2", "w-3", "w-4"):
        story.turn()
        story.agents[name].say(Leaving(0))
        story.agents[name].frozen = True
        story.settle()
        story.settle()
    assert story.members() == ("master",)
    story.root.finish()
    story.turn()
    assert isinstance(outcome(running), list)


def test_where_no_machine_returns_in_time_requests_fail_with_what_is_missing(story: Story) -> None:
    story.min_workers = 1
    two_machines(story)
    running = story.submit("r-1")
    story.turn()
    story.freeze()
    story.wait(RECOVERY_GRACE_S + 3)
    error = failure(running)
    assert isinstance(error, NotServing)
    assert "0 of 1 worker here; pi: silent for" in str(error)
    with pytest.raises(NotServing):
        story.submit("r-2")


@pytest.mark.fault("P6", "tried alone it ends one more epoch, then fails in words; others go on")
def test_a_request_that_kills_every_session_fails_alone_and_the_others_go_on(story: Story) -> None:
    two_machines(story)
    poison, good = story.submit("poison"), story.submit("good")
    deaths = 0
    for _ in range(400):
        if story.ready and "poison" in story.root.asked and story.rank_zero.cause is None:
            deaths += 1
            story.rank_zero.cause = "its process was killed by SIGSEGV"
        story.wait(0.1)
        if story.ready and "good" in story.root.asked:
            break
    assert deaths == GUILTY
    assert "killed by SIGSEGV" in str(failure(poison))
    story.root.token("good")
    story.root.finish("good")
    story.turn()
    assert isinstance(outcome(good), list)
    story.rank_zero.cause = "its process was killed by SIGSEGV"
    story.settle()
    assert story.ready, "the answer has ended the waiting"


@pytest.mark.parametrize(
    "refusal", [BlockingIOError(11, "Resource temporarily unavailable"), ResourceError("no process is left")]
)
def test_a_node_that_cannot_be_started_is_said_in_words(story: Story, refusal: Exception) -> None:
    story.rank_zero.refusal = refusal
    waiting = story.submit()
    story.wait(8.0)
    assert not story.ready
    assert f"cannot start a node: {refusal}" in story.master.status.reason
    error = failure(waiting)
    assert isinstance(error, NotServing)
    assert f"cannot start a node: {refusal}" in str(error)
    story.rank_zero.refusal = None
    story.wait_for(lambda: story.ready)
    assert story.master.failed is None


def fail_next_attempt(story: Story, agent: FakeAgent, attempts: int) -> None:
    """The worker cannot prepare its part of the one after so many."""
    story.wait_for(lambda: agent.count(Prepare) > attempts)
    agent.failed("the disk is full")
    story.turn()


def test_a_worker_that_failed_is_tried_again_soon_where_nothing_serves_without_it(story: Story) -> None:
    story.min_workers = 1
    agent = story.join("w-1")
    agent.prepares = False
    failed: list[float] = []
    for _ in range(4):
        fail_next_attempt(story, agent, len(failed))
        failed.append(story.clock.now())
    gaps = [later - sooner for sooner, later in itertools.pairwise(failed)]
    assert gaps == sorted(gaps)
    assert gaps[-1] < 5.0
    reason = story.master.status.reason
    assert (
        reason
        == "node 1 (pi) was lost during its preparation: the disk is full; it is tried again after 8.0 s"
    )
    agent.prepares = True
    story.wait(9.0)
    assert story.members() == ("master", "w-1")


def test_who_serves_only_because_nothing_serves_without_it_goes_once_another_comes(story: Story) -> None:
    """The plan without it is tried as soon as there is one, whatever the failures before; then nothing changes until
    its time is over."""
    story.min_workers = 1
    bad = story.join("w-1")
    bad.prepares = False
    for number in range(5):
        fail_next_attempt(story, bad, number)
    story.join("w-2")
    story.settle()
    assert story.members() == ("master", "w-2")
    assert story.worker().state == "left out"
    epoch = story.epoch
    story.wait(25.0)
    assert story.epoch == epoch
    bad.prepares = True
    story.try_again()
    assert story.members() == ("master", "w-1", "w-2")


def test_of_several_that_failed_the_others_are_tried_before_the_last(story: Story) -> None:
    story.min_workers = 1
    for name in ("w-1", "w-2"):
        story.join(name).prepares = False
    story.settle()
    story.agents["w-2"].failed("no room")
    story.settle()
    story.agents["w-1"].failed("the disk is full")
    story.agents["w-2"].prepares = True
    story.wait(3.0)
    assert story.members() == ("master", "w-2")
