"""A master with its thread."""

import threading

import pytest

from tests.unit.master.stories import Story, failure, outcome
from tpiedge.errors import InternalError, TpiedgeError
from tpiedge.master.master import NotServing
from tpiedge.wire.control import Generate

WAIT_S = 10.0
U_EPOCH = 1_700_000_000


def test_the_thread_serves_and_ends(story: Story) -> None:
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


def test_a_defect_of_the_thread_fails_every_request(story: Story) -> None:
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


def test_a_hub_that_is_closed_first_ends_the_thread_in_order(story: Story) -> None:
    story.clock.advance(10.0)
    waiting = story.submit()
    story.master.start(U_EPOCH)
    story.hub.close()
    assert isinstance(failure(waiting), TpiedgeError)
    story.master.close()
    assert story.rank_zero.calls[-1] == "close"


def test_requests_and_cancels_from_many_threads_all_end(story: Story) -> None:
    """Every submit is answered exactly once, whatever the others do."""
    story.clock.advance(10.0)
    story.master.start(U_EPOCH)
    ended: list[object] = []

    def ask(worker: int) -> None:
        for number in range(20):
            try:
                answering = story.submit(f"r-{worker}-{number}")
            except TpiedgeError as error:
                ended.append(error)
                continue
            if number % 2:
                answering.cancel()
            ended.append(outcome(answering))

    threads = [threading.Thread(target=ask, args=(worker,)) for worker in range(4)]
    while story.rank_zero.epoch is None:
        story.hub.wake()
    node = story.node(0, U_EPOCH)
    node.hello()
    for thread in threads:
        thread.start()
    answered = 0
    while any(thread.is_alive() for thread in threads):
        envelope = node.spoke.recv(0.05)
        if envelope is not None:
            node.heard.append(envelope.message)
            node.answer(envelope.message)
        for name in node.asked[answered:]:
            answered += 1
            node.finish(name)
    for thread in threads:
        thread.join()
    assert len(ended) == 80


def test_a_thread_that_does_not_end_is_an_error(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    planning, done = threading.Event(), threading.Event()

    def endless(machines: object) -> str:
        planning.set()
        assert done.wait(WAIT_S)
        return "nobody is here"

    monkeypatch.setattr("tpiedge.master.master._CLOSE_S", 0.05)
    story.plan = endless
    story.clock.advance(10.0)
    story.master.start(U_EPOCH)
    assert planning.wait(WAIT_S)
    with pytest.raises(InternalError, match="the control thread did not end within"):
        story.master.close()
    done.set()
    monkeypatch.setattr("tpiedge.master.master._CLOSE_S", WAIT_S)
    story.master.close()
