import threading
from dataclasses import replace

import pytest

from tests.unit.master.stories import SERVED, Story, assignments_of, failure, outcome, two_machines
from tpiedge.errors import Cancelled, InternalError, UserError
from tpiedge.master.assignments import Assignment
from tpiedge.master.reconciler import NotServing
from tpiedge.planner.capacity import MOST_MACHINES
from tpiedge.wire.control import AskStats, Cancel, Generate, StepSpans
from tpiedge.wire.epochs import AskPages, PageFiles, Release
from tpiedge.wire.requests import GenerationRequest, Sampling


def test_drained_master_finishes_accepted_requests(story: Story) -> None:
    story.settle()
    running, waiting = story.submit("r-1"), story.submit("r-2")
    story.turn()
    story.master.drain()
    with pytest.raises(NotServing, match="shutting down"):
        story.submit("r-3")
    for name in ("r-1", "r-2"):
        assert not story.master.requests.idle
        story.finish(name)
    assert isinstance(outcome(running), list)
    assert isinstance(outcome(waiting), list)
    assert story.master.requests.idle


def test_closing_ends_requests_nodes_and_agents(story: Story) -> None:
    agent = two_machines(story)
    answering = story.asked()
    story.master.close()
    assert isinstance(failure(answering), Cancelled)
    agent.listen()
    assert agent.heard[-1] == Release(story.epoch)
    assert story.rank_zero.calls[-1] == "close"
    with pytest.raises(NotServing):
        story.submit()


def test_workers_beyond_the_plan_limit_are_spare(story: Story) -> None:
    for number in range(MOST_MACHINES + 3):
        story.join(f"w-{number}")
    story.turn()
    story.wait(0.5)
    assert len(story.planned[-1]) == MOST_MACHINES - 1
    story.settle()
    assert story.worker(f"w-{MOST_MACHINES}").spare == "too many"


def keeping(*machines: str, but: str = "") -> tuple[Assignment, ...]:
    return tuple(replace(one, keeps=one.machine != but) for one in assignments_of(*machines))


@pytest.mark.parametrize("but", ["", "w-1"])
def test_status_says_whether_every_machine_keeps_context(story: Story, but: str) -> None:
    story.plan = lambda machines: keeping(*(one.name for one in machines), but=but or "none")
    two_machines(story)
    status = story.master.status
    assert status.keeps_context != bool(but)
    assert ("on pi with --keep-context" in status.not_kept) == bool(but)
    assert status.not_parked == ""


def test_page_files_of_present_machines_are_asked_for(story: Story) -> None:
    agents = [story.join(name) for name in ("w-1", "w-2")]
    story.settle()
    asked, again = story.master.ask_pages(clear=True), story.master.ask_pages(clear=False)
    story.turn()
    first, second = asked.result(0), again.result(0)
    assert set(first) == set(second) == {"w-1", "w-2"}
    orders = [[one for one in agent.heard if isinstance(one, AskPages)] for agent in agents]
    assert orders[0] == orders[1] == [AskPages(0, 1, True), AskPages(0, 2, False)]
    answer = PageFiles(0, 2, 3, 4096, 0, 0, "")
    agents[0].say(answer)
    agents[0].say(answer)  # once too often
    agents[1].say(PageFiles(0, 7, 3, 4096, 0, 0, ""))  # an answer without a question
    story.turn()
    assert second["w-1"].result(0) == answer
    assert not any(one.done() for one in (*first.values(), second["w-2"]))
    assert story.worker().state == "ready", "neither breaks the protocol"
    del first, second, asked, again
    agents[1].say(PageFiles(0, 1, 3, 4096, 0, 0, ""))  # its caller has given up
    story.turn()
    assert story.worker("w-2").state == "ready"


GIB = 1 << 30


def of_own(story: Story, planned_bytes: int) -> tuple[Assignment, ...]:
    own, *others = assignments_of(*story.agents)
    return replace(own, planned_bytes=planned_bytes, weight_bytes=planned_bytes), *others


def test_master_machine_gives_all_memory_when_no_plan_fits(story: Story) -> None:
    """The master's node was killed for want of memory, and three quarters of it hold no share."""
    story.plan = lambda _machines: (
        of_own(story, 4 * GIB) if story.rank_zero.memory_bytes >= 4 * GIB else "too little"
    )
    two_machines(story)
    serving = story.epoch
    story.rank_zero.usable_bytes, story.rank_zero.memory_bytes = 4 * GIB, 3 * GIB
    story.rank_zero.cause = "it ran out of memory"
    story.wait(2.0)
    assert story.rank_zero.memory_bytes == 4 * GIB
    assert story.epoch > serving
    assert story.ready


PARALLEL = replace(SERVED, capacity_tokens=256, sequences=3, speculate=4)


@pytest.mark.parametrize("story", [PARALLEL], indirect=True)
def test_failing_request_does_not_affect_others(story: Story) -> None:
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
    story.finish("r-3")
    assert isinstance(failure(unsent), UserError)
    assert isinstance(failure(refused), UserError)
    assert isinstance(outcome(cancelled), list)
    assert isinstance(outcome(good), list)
    assert story.ready


WAIT_S = 10.0
U_EPOCH = 1_700_000_000


def test_master_thread_serves_and_ends(story: Story) -> None:
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


def test_master_thread_error_fails_every_request(story: Story) -> None:
    story.rank_zero.refusal = ZeroDivisionError("rank 0")
    waiting = story.submit()
    story.clock.advance(10.0)
    story.master.start(U_EPOCH)
    error = failure(waiting)
    assert isinstance(error, InternalError)
    assert "ZeroDivisionError" in str(error)
    with pytest.raises(NotServing):
        story.submit()
    assert str(story.master.failed) == str(error)


def serving(story: Story) -> None:
    story.join("w-1")
    story.settle()
    assert story.ready


def test_node_stats_are_polled_only_while_a_client_watches(story: Story) -> None:
    serving(story)
    story.master.observe()
    story.wait(10.0)
    asked = [node.count(AskStats) for node in story.nodes.values()]
    assert min(asked) > 10
    story.wait(100.0)
    settled = [node.count(AskStats) for node in story.nodes.values()]
    story.wait(100.0)
    assert [node.count(AskStats) for node in story.nodes.values()] == settled


def asked_for_steps(story: Story) -> list[int]:
    return [
        sum(isinstance(one, AskStats) and one.timeline for one in node.heard) for node in story.nodes.values()
    ]


def test_step_timelines_are_requested_only_while_watched(story: Story) -> None:
    serving(story)
    story.master.observe()
    story.wait(10.0)
    assert asked_for_steps(story) == [0, 0]
    story.master.observe(timeline=True)
    story.wait(100.0)
    lead, other = asked_for_steps(story)
    assert 3 <= lead <= 5
    assert other == 0


def test_step_timeline_is_shown_until_the_epoch_ends(story: Story) -> None:
    serving(story)
    story.master.observe(timeline=True)
    assert story.master.timeline is None
    told = [StepSpans(story.epoch, rank, 7, 1, ((0, 5),), (), ()) for rank in range(2)]
    for spans in told:
        story.node(spans.rank, story.epoch).say(spans)
    story.turn()
    found = story.master.timeline
    assert found is not None
    assert (found.epoch, list(found.spans)) == (story.epoch, told)
    story.join("w-2")
    story.settle()
    assert story.master.timeline is None
