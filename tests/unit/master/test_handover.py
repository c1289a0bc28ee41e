"""Stories of plans that change while requests run: what was computed for them travels, where that is faster."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.unit.master.players import FakeNode
from tests.unit.master.stories import SERVED, Story, paused
from tpiedge.master.journal import Resumed
from tpiedge.wire.control import Assign, Carried, Halt, Halted, Resume, Shutdown, Token
from tpiedge.wire.requests import GenerationRequest

#: Bytes of a KV head for each position.
LITTLE, MUCH = 1024.0, 1e9
PROMPT = 64


@pytest.fixture
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    found = Story(replace(SERVED, kv_head_bytes=getattr(request, "param", LITTLE)))
    yield found
    found.master.close()
    found.hub.close()


def ask(story: Story):
    running = story.submit()
    story.turn()
    story.root.token()
    story.turn()
    return running


def drain(story: Story, name: str = "w-1") -> None:
    story.master.drain_worker(name)
    story.settle()


def only(node: FakeNode, kind: type) -> object:
    (found,) = [message for message in node.heard if isinstance(message, kind)]
    return found


def test_rank_0_halts_and_the_next_nodes_are_told_what_it_left(trio: Story) -> None:
    running, before = ask(trio), trio.root
    drain(trio)
    # Head 2 was on w-2, and is from now on head 1's neighbour there: w-1's head comes by rank 0.
    halt = Halt(before.epoch, trio.epoch, ((0, 1), (0, 0), (0, 0)), (), ((1, 1),))
    assert only(before, Halt) == halt
    assert before.heard.index(halt) < before.heard.index(Shutdown(before.epoch))
    for rank in (0, 1):
        told = only(trio.nodes[rank, trio.epoch], Assign)
        assert told.carried == Carried(before.epoch, 5, True, ((1, 1),))
    assert paused(running) == "a new plan begins"
    assert trio.root.order().answer_ids == (5,)


def test_nothing_is_asked_of_nodes_with_which_nobody_talks(trio: Story) -> None:
    before = trio.root
    drain(trio)
    assert before.count(Shutdown) == 1
    assert before.count(Halt) == 0
    assert only(trio.root, Assign).carried is None


def test_the_first_plan_finds_nothing(trio: Story) -> None:
    assert only(trio.root, Assign).carried is None


@pytest.mark.parametrize("left", [0, 5])
def test_what_could_not_be_left_is_computed_anew(trio: Story, left: int, caplog) -> None:
    ask(trio)
    trio.root.left = left
    drain(trio)
    assert (only(trio.root, Assign).carried is None) == (left == 0)
    assert ("does not travel: no room" in caplog.text) == (left == 0)


def test_nothing_is_said_where_there_was_nothing_to_leave(trio: Story, caplog) -> None:
    ask(trio)
    before, before.halts = trio.root, False
    drain(trio)
    before.say(Halted(before.epoch, 0, before.epoch + 1, 0, ""))
    trio.settle()
    assert only(trio.root, Assign).carried is None
    assert "does not travel" not in caplog.text


def test_answers_are_told_why_they_pause_where_halting_takes_long(trio: Story) -> None:
    running = ask(trio)
    before, before.halts = trio.root, False
    drain(trio)
    trio.wait(2.0)
    assert paused(running) == "a new plan begins"
    assert running._events.empty(), "it is told again and again"
    trio.master.undrain_worker("w-1")
    trio.wait(1.0)
    before.token(token=6)
    trio.turn()
    events = list(running._events.queue)
    assert [type(event) for event in events] == [Resumed, Token]
    assert 2.0 < events[0].paused_s < 5.0


def test_a_rank_0_that_does_not_answer_is_not_waited_for_without_end(trio: Story) -> None:
    ask(trio)
    before, before.halts = trio.root, False
    drain(trio)
    assert before.count(Halt) == 1
    assert before.count(Shutdown) == 0
    trio.wait_for(lambda: before.count(Shutdown) == 1, 20.0)
    trio.settle()
    assert only(trio.root, Assign).carried is None
    assert trio.root.order().answer_ids == (5,)


def test_no_request_starts_while_rank_0_halts(trio: Story) -> None:
    ask(trio)
    before, before.halts = trio.root, False
    drain(trio)
    trio.submit("r-2")
    trio.wait(1.0)
    assert before.asked == ["r-1"]


def test_tokens_on_their_way_still_count(trio: Story) -> None:
    ask(trio)
    before, before.halts = trio.root, False
    drain(trio)
    before.token(token=6)
    before.say(Halted(before.epoch, 0, before.epoch + 1, 5, ""))
    trio.settle()
    assert trio.root.order().answer_ids == (5, 6)


def test_rank_0_goes_on_when_the_plan_comes_to_nothing(trio: Story) -> None:
    running = ask(trio)
    before, before.halts = trio.root, False
    drain(trio)
    trio.master.undrain_worker("w-1")
    trio.wait(1.0)
    kinds = [type(message) for message in before.heard if isinstance(message, Halt | Resume | Shutdown)]
    assert kinds == [Halt, Resume]
    assert trio.root is before
    # Its answer to the first Halt, which comes late, is none to the second.
    before.say(Halted(before.epoch, 0, before.epoch + 1, 5, ""))
    drain(trio)
    assert before.count(Halt) == 2
    assert before.count(Shutdown) == 0
    before.say(Halted(before.epoch, 0, before.epoch + 2, 7, ""))
    trio.settle()
    assert only(trio.root, Assign).carried.pages == 7
    assert not running.unwanted


def test_a_loss_while_it_halts_is_a_loss(trio: Story) -> None:
    ask(trio)
    before, before.halts = trio.root, False
    drain(trio)
    trio.agents["w-2"].spoke.close()
    trio.agents.pop("w-2")
    trio.nodes.pop((2, before.epoch))
    trio.wait_for(lambda: trio.epoch not in (0, before.epoch), 20.0)
    trio.settle()
    assert only(trio.root, Assign).carried is None


@pytest.mark.parametrize(("story", "travels"), [(LITTLE, True), (MUCH, False)], indirect=["story"])
def test_what_travels_for_longer_than_it_takes_to_read_anew_is_read_anew(trio: Story, travels: bool) -> None:
    running = trio.master.submit(GenerationRequest("r-1", tuple(range(PROMPT)), 4))
    trio.turn()
    trio.wait(0.5)
    before = trio.root
    before.token()
    trio.turn()
    drain(trio)
    assert before.count(Halt) == travels
    assert (only(trio.root, Assign).carried is not None) == travels
    assert paused(running) == "a new plan begins"


def test_a_prompt_that_is_read_does_not_hold_the_plan_up_where_it_travels(trio: Story) -> None:
    running = trio.submit()
    trio.turn()
    before = trio.root
    drain(trio)
    assert before.count(Halt) == 1
    assert trio.root is not before
    assert paused(running) == "a new plan begins"


@pytest.mark.parametrize("story", [1.1e6], indirect=True)
def test_what_travels_for_more_than_a_minute_is_no_stuck_request(trio: Story) -> None:
    """Reading anew would take longer."""
    trio.master.submit(GenerationRequest("r-1", tuple(range(PROMPT)), 4))
    trio.turn()
    trio.wait(58.0)
    trio.root.token()
    trio.turn()
    before, before.halts = trio.root, False
    drain(trio)
    trio.wait(64.0)
    assert trio.root is before
    assert before.count(Shutdown) == 0
    before.say(Halted(before.epoch, 0, before.epoch + 1, 5, ""))
    trio.settle()
    assert only(trio.root, Assign).carried is not None
