"""What an answer's events come to: how far its prompt is read, as pings say it."""

import pytest

from tpiedge.api.service import Reading
from tpiedge.api.transcript import Transcript
from tpiedge.master.journal import Paused
from tpiedge.wire.control import PromptScores, Token


@pytest.mark.parametrize(
    "event",
    [Token(1, "r", 0, 5, ()), PromptScores(1, "r", 1, (-1.0,), ()), Paused("dell-1 was lost")],
    ids=["a token", "scores of the prompt", "a pause"],
)
def test_how_far_a_prompt_is_read_is_said_until_something_else_is(
    event: Token | PromptScores | Paused,
) -> None:
    transcript = Transcript(None, ())
    transcript.feed(Reading(300, 900, 100.0, 6.0))
    assert transcript.reading == "reading 300 of 900 tokens, 6 s left"
    transcript.feed(event)
    assert transcript.reading == ""
