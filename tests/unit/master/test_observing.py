"""The master asks nodes for their counters while a client looks at them, and never waits for the answers."""

from tests.unit.master.stories import Story
from tpiedge.master.quarantine import FLOOD
from tpiedge.wire.control import AskStats


def serving(story: Story) -> None:
    story.join("w-1")
    story.settle()
    assert story.ready


def ranks_told(story: Story) -> list[int]:
    return [node.counters.rank for node in story.master.status.nodes if node.counters is not None]


def test_no_node_is_asked_before_a_client_looks(story: Story) -> None:
    serving(story)
    story.wait(30.0)
    assert [node.count(AskStats) for node in story.nodes.values()] == [0, 0]
    assert ranks_told(story) == []


def test_the_second_look_has_what_every_node_said(story: Story) -> None:
    serving(story)
    assert all(node.counters is None for node in story.master.observe().nodes)
    story.turn()
    assert ranks_told(story) == [0, 1]


def test_they_are_asked_again_with_the_heartbeats_until_no_client_looks_any_more(story: Story) -> None:
    serving(story)
    story.master.observe()
    story.wait(10.0)
    asked = [node.count(AskStats) for node in story.nodes.values()]
    assert min(asked) > 10
    story.wait(100.0)
    settled = [node.count(AskStats) for node in story.nodes.values()]
    story.wait(100.0)
    assert [node.count(AskStats) for node in story.nodes.values()] == settled


def test_a_silent_node_leaves_what_it_said_last(story: Story) -> None:
    serving(story)
    story.master.observe()
    story.turn()
    story.nodes[1, story.epoch].frozen = True
    before = story.master.status.nodes[1].counters
    story.wait(0.5)
    assert before is not None
    assert story.master.observe().nodes[1].counters == before


def test_before_the_first_plan_a_look_is_harmless(story: Story) -> None:
    story.master.observe()
    story.turn(1)
    assert ranks_told(story) == []


def test_counters_begin_anew_with_a_plan(story: Story) -> None:
    serving(story)
    story.master.observe()
    story.turn()
    story.loads = False
    story.join("w-2")
    story.settle()
    assert story.epoch > 1
    assert ranks_told(story) == []


def test_however_many_look_the_answers_are_no_flood(story: Story) -> None:
    serving(story)
    epoch = story.epoch
    for _ in range(FLOOD):
        story.master.observe()
    story.turn()
    assert [node.count(AskStats) for node in story.nodes.values()] == [1, 1]
    assert (story.ready, story.epoch, story.members()) == (True, epoch, ("master", "w-1"))


def test_who_looks_again_after_a_long_time_is_told_at_once(story: Story) -> None:
    serving(story)
    story.master.observe()
    story.wait(100.0)
    asked = [node.count(AskStats) for node in story.nodes.values()]
    story.master.observe()
    story.turn(2)
    assert [node.count(AskStats) for node in story.nodes.values()] == [count + 1 for count in asked]
