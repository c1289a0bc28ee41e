from tests.unit.master.stories import Story
from tpiedge.wire.control import AskStats, StepSpans


def serving(story: Story) -> None:
    story.join("w-1")
    story.settle()
    assert story.ready


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


def asked_for_steps(story: Story) -> list[int]:
    return [
        sum(isinstance(one, AskStats) and one.timeline for one in node.heard) for node in story.nodes.values()
    ]


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
