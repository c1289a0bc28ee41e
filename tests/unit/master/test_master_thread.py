import threading

import pytest

from tests.unit.master.stories import Story, failure, outcome
from tpiedge.errors import InternalError
from tpiedge.master.reconciler import NotServing
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
