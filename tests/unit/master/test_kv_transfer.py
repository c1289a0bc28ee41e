from dataclasses import replace

import pytest

from tests.unit.master.players import FakeNode
from tests.unit.master.stories import SERVED, Story, paused
from tpiedge.master.journal import Resumed
from tpiedge.wire.control import Assign, Halt, Halted, KVSnapshot, Resume, Shutdown, Token

pytestmark = pytest.mark.parametrize("story", [replace(SERVED, kv_head_bytes=1024.0)], indirect=True)


def ask(story: Story):
    running = story.asked()
    story.root.token()
    story.turn()
    return running


def drain(story: Story, name: str = "w-1") -> None:
    story.master.drain_worker(name)
    story.settle()


def only(node: FakeNode, kind: type) -> object:
    (found,) = [message for message in node.heard if isinstance(message, kind)]
    return found


def test_rank_0_halts_and_next_nodes_get_its_kv_snapshot(trio: Story) -> None:
    running, before = ask(trio), trio.root
    drain(trio)
    # Head 2 was on w-2, and is from now on head 1's neighbour there: w-1's head comes by rank 0.
    halt = Halt(before.epoch, trio.epoch, ((1, 1),))
    assert only(before, Halt) == halt
    assert before.heard.index(halt) < before.heard.index(Shutdown(before.epoch))
    for rank in (0, 1):
        told = only(trio.nodes[rank, trio.epoch], Assign)
        assert told.snapshot == KVSnapshot(before.parked, ((1, 1),))
    assert paused(running) == "switching to a new plan"
    assert trio.root.order().answer_ids == (5,)


@pytest.mark.parametrize("parked", [b"", b"n" * 32])
def test_next_nodes_get_no_kv_snapshot_if_none_was_saved(trio: Story, parked: bytes, caplog) -> None:
    ask(trio)
    trio.root.parked = parked
    drain(trio)
    assert (only(trio.root, Assign).snapshot is None) == (not parked)
    assert ("KV cache was not saved: no room" in caplog.text) == (not parked)


def test_answer_reports_a_pause_while_halting_takes_long(trio: Story) -> None:
    running = ask(trio)
    before, before.halts = trio.root, False
    drain(trio)
    trio.wait(2.0)
    assert paused(running) == "switching to a new plan"
    assert running._events.empty(), "it is told again and again"
    trio.master.undrain_worker("w-1")
    trio.wait(1.0)
    before.token(token=6)
    trio.turn()
    events = list(running._events.queue)
    assert [type(event) for event in events] == [Resumed, Token]
    assert 2.0 < events[0].paused_s < 5.0


def test_halting_an_unresponsive_rank_0_times_out(trio: Story) -> None:
    ask(trio)
    before, before.halts = trio.root, False
    drain(trio)
    assert before.count(Halt) == 1
    assert before.count(Shutdown) == 0
    trio.wait_for(lambda: before.count(Shutdown) == 1, 20.0)
    trio.settle()
    assert only(trio.root, Assign).snapshot is None
    assert trio.root.order().answer_ids == (5,)


def test_rank_0_resumes_when_the_plan_is_dropped(trio: Story) -> None:
    running = ask(trio)
    before, before.halts = trio.root, False
    drain(trio)
    trio.master.undrain_worker("w-1")
    trio.wait(1.0)
    kinds = [type(message) for message in before.heard if isinstance(message, Halt | Resume | Shutdown)]
    assert kinds == [Halt, Resume]
    assert trio.root is before
    # The answer to the first Halt comes too late and does not answer the second.
    before.say(Halted(before.epoch, 0, before.epoch + 1, b"1" * 16, ""))
    drain(trio)
    assert before.count(Halt) == 2
    assert before.count(Shutdown) == 0
    before.say(Halted(before.epoch, 0, before.epoch + 2, b"2" * 16, ""))
    trio.settle()
    assert only(trio.root, Assign).snapshot.names == b"2" * 16
    assert not running.unwanted
