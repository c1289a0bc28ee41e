"""The master asks nodes for their counters while a client looks at them, and never waits for the answers."""

import pytest

from tests.unit.master.stories import Story
from tpiedge.master.counters import Counted
from tpiedge.master.reception import FLOOD
from tpiedge.master.status import NodeStatus
from tpiedge.wire.control import AskStats, StepSpans


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


def test_they_are_asked_again_and_again_until_no_client_looks_any_more(story: Story) -> None:
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


def asked_for_steps(story: Story) -> list[int]:
    """How often each node was asked to have a step recorded."""
    return [
        sum(isinstance(one, AskStats) and one.timeline for one in node.heard) for node in story.nodes.values()
    ]


def _counted(node: NodeStatus) -> Counted:
    assert node.counted is not None
    return node.counted


def test_rates_are_those_between_arrivals_of_the_last_seconds(story: Story) -> None:
    serving(story)
    story.master.observe()
    story.turn()
    found = story.master.status.nodes
    assert all(one.spent_s == 0.0 and one.first == one.latest for one in map(_counted, found))
    story.wait(2.1)
    assert [_counted(node).spent_s for node in story.master.status.nodes] == [
        pytest.approx(2.1, abs=0.31)
    ] * 2
    story.wait(30.0)
    assert all(5.0 < _counted(node).spent_s <= 6.0 for node in story.master.status.nodes)


def test_steps_are_recorded_once_a_second_while_a_client_looks_at_them(story: Story) -> None:
    serving(story)
    story.master.observe()
    story.wait(10.0)
    assert asked_for_steps(story) == [0, 0]
    story.master.observe(timeline=True)
    story.wait(100.0)
    lead, other = asked_for_steps(story)
    assert 3 <= lead <= 5
    assert other == 0


def test_a_step_that_all_nodes_recorded_is_shown_until_the_epoch_ends(story: Story) -> None:
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
