import itertools
import re
from collections.abc import Callable

import pytest

from tests.unit.master.stories import Story, failure, outcome, two_machines
from tpiedge.errors import ResourceError
from tpiedge.master.journal import POISON_AFTER
from tpiedge.master.reconciler import NotServing
from tpiedge.master.workers import FIRST_S, LONGEST_DUE_S
from tpiedge.wire.epochs import Prepare


def test_clearing_a_left_out_worker_retries_it_at_once(story: Story) -> None:
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


def test_failed_plan_backs_off_but_is_retried_at_once_after_a_loss(
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


def test_too_few_workers_fails_requests_at_once(story: Story) -> None:
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


def away(story: Story, harm: Callable[[], None], up_s: float = 1.0) -> float:
    story.wait(up_s)
    assert story.ready
    begun, epoch = story.clock.now(), story.epoch
    harm()
    story.wait_for(lambda: story.ready and story.epoch > epoch)
    return story.clock.now() - begun


def kill(story: Story, name: str) -> Callable[[], None]:
    return lambda: story.agents[name].failed("its process was killed by SIGKILL")


def test_indispensable_worker_with_dying_nodes_is_retried_with_backoff(
    story: Story,
) -> None:
    """Another worker that joins ends the wait; the failing one is left out."""
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


@pytest.mark.fault("P6", "tried alone it ends one more epoch, then fails in words; others go on")
def test_poison_request_fails_alone(story: Story) -> None:
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
    assert deaths == POISON_AFTER
    assert "killed by SIGSEGV" in str(failure(poison))
    story.root.token("good")
    story.finish("good")
    assert isinstance(outcome(good), list)
    story.rank_zero.cause = "its process was killed by SIGSEGV"
    story.settle()
    assert story.ready, "the answer has ended the waiting"


@pytest.mark.parametrize(
    "refusal", [BlockingIOError(11, "Resource temporarily unavailable"), ResourceError("no process is left")]
)
def test_failed_node_start_is_explained_to_requests(story: Story, refusal: Exception) -> None:
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
