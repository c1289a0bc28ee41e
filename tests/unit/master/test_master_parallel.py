from dataclasses import replace

import pytest

from tests.unit.master.stories import SERVED, Story, failure, outcome
from tpiedge.errors import UserError
from tpiedge.wire.control import Cancel
from tpiedge.wire.requests import GenerationRequest, Sampling

PARALLEL = replace(SERVED, capacity_tokens=256, sequences=3, speculate=4)


@pytest.mark.parametrize("story", [PARALLEL], indirect=True)
def test_what_is_wrong_with_a_request_is_its_own_end_alone(story: Story) -> None:
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
