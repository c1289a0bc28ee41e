"""Stories of a master whose own process did not run for a while: it loses nobody for that."""

from collections.abc import Callable

from tests.unit.master.stories import Story, two_machines
from tpiedge.transport.endpoint import Envelope

STALL_S = 5.0


def crowd(story: Story) -> list[str]:
    names = [f"w-{number}" for number in range(1, 4)]
    for name in names:
        story.join(name)
    story.settle()
    assert story.ready
    return names


def test_what_came_while_it_waited_is_heard_however_long_that_took(story: Story) -> None:
    crowd(story)
    recv: Callable[[float], Envelope | None] = story.hub.recv

    def stalled(wait_s: float) -> Envelope | None:
        if wait_s > 0:
            story.clock.advance(STALL_S)
        return recv(0.0)

    for agent in story.agents.values():
        agent.pulse()
    epoch = story.epoch
    story.hub.recv = stalled  # type: ignore[method-assign]
    story.master.turn()
    assert recv(0.0) is None
    assert (story.epoch, story.ready) == (epoch, True)


def test_words_that_are_still_on_their_way_when_it_runs_again_are_waited_for(story: Story) -> None:
    names = crowd(story)
    epoch = story.epoch
    story.clock.advance(STALL_S)
    story.turn()
    story.wait(1.0)
    assert (story.epoch, story.ready) == (epoch, True)
    assert story.members() == ("master", *names)


def test_who_fell_silent_meanwhile_is_lost_all_the_same(story: Story) -> None:
    two_machines(story)
    story.freeze()
    story.clock.advance(STALL_S)
    story.turn()
    assert story.members() == ("master", "w-1")
    story.wait(0.4)
    story.settle()
    assert story.members() == ("master",)
