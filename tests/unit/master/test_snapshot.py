"""The snapshot that everybody else sees, for every situation of a machine."""

from dataclasses import replace

import pytest

from tests.unit.master.players import offer
from tests.unit.master.stories import SERVED, Story, assignments_of
from tpiedge.master.status import NodeStatus
from tpiedge.planner.reasons import SpareReason


def worker(story: Story, name: str = "w-1") -> NodeStatus:
    (found,) = [node for node in story.master.status.nodes if node.name == name]
    return found


def test_before_the_first_plan(story: Story) -> None:
    status = story.master.status
    assert (status.ready, status.reason, status.epoch) == (False, "starting", 0)
    story.turn(1)
    (own,) = story.master.status.nodes
    assert (own.name, own.rank, own.state, own.threads) == ("master", None, "waiting", 2)


def test_a_worker_that_fetches_shows_how_far_it_is(story: Story) -> None:
    agent = story.join("w-1")
    agent.prepares = False
    story.settle()
    assert worker(story).state == "preparing", "nothing is known to be missing"
    agent.preparing(done=4)
    story.turn()
    found = worker(story)
    assert (found.state, found.fetched_bytes, found.fetch_total_bytes, found.fetch_bytes_per_s) == (
        "fetching",
        4,
        10,
        1.0,
    )
    assert found.host == "pi"
    assert found.rank is None


def test_a_node_that_loads_and_then_serves(story: Story) -> None:
    story.loads = False
    story.join("w-1")
    story.settle()
    assert (worker(story).rank, worker(story).state) == (1, "joined")
    assert not story.ready
    assert story.master.status.reason == "loading the weights"
    for node in story.nodes.values():
        node.ready()
    story.turn()
    found = worker(story)
    assert (found.state, found.attention, found.ffn, found.why) == ("ready", (1, 2), (1, 2), "equal")
    assert story.ready
    assert story.master.status.reason == ""
    assert story.master.status.nodes[0].pid == 7


def test_a_worker_that_went_stays_in_the_list_with_the_cause(story: Story) -> None:
    agent = story.join("w-1")
    story.settle()
    agent.frozen = True
    story.wait(3.0)
    found = worker(story)
    assert found.state == "lost"
    assert "silent for" in found.why
    assert found.last_seen_s > 2.0


def test_a_spare_worker_has_no_rank(story: Story) -> None:
    story.plan = lambda machines: assignments_of()
    story.join("w-1")
    story.settle()
    found = worker(story)
    assert (found.state, found.why, found.spare) == ("spare", "the plan has no part for it", "")
    story.spare = {"w-1": SpareReason("slower", "words")}
    story.agents["w-1"].say(offer("w-1", memory_bytes=5))
    story.settle()
    found = worker(story)
    assert (found.state, found.why, found.spare) == ("spare", "words", "slower")


@pytest.mark.parametrize(
    ("story", "speed"),
    [(replace(SERVED, compute="f32"), 1e9), (replace(SERVED, compute="int8"), 2e9)],
    indirect=["story"],
)
def test_a_machine_s_speed_is_that_with_the_model_s_weights(story: Story, speed: float) -> None:
    """Also of a spare one."""
    story.plan = lambda machines: assignments_of()
    story.join("w-1")
    story.settle()
    assert worker(story).speed == speed


def test_the_queue_is_counted(story: Story) -> None:
    story.settle()
    for number in range(3):
        story.submit(f"r-{number}")
    story.turn()
    assert (story.master.status.queued, story.master.status.running) == (2, 1)
