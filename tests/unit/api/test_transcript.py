import json
from unittest import mock

import pytest

from tpiedge.api.formats import json_bytes, long_json
from tpiedge.api.transcript import Transcript
from tpiedge.master.journal import Paused
from tpiedge.master.request_times import Reading
from tpiedge.model.tokenizer import TextWriter
from tpiedge.wire.control import PromptScores, Token


@pytest.mark.parametrize(
    "event",
    [Token(1, "r", 0, 5, ()), PromptScores(1, "r", 1, (-1.0,), ()), Paused("dell-1 was lost")],
    ids=["a token", "scores of the prompt", "a pause"],
)
def test_how_far_a_prompt_is_read_is_said_until_something_else_is(
    event: Token | PromptScores | Paused,
) -> None:
    transcript = Transcript(TextWriter(None, ()), None)
    transcript.feed(Reading(300, 900, 100.0, 6.0))
    assert transcript.reading == "reading 300 of 900 tokens, 6 s left"
    transcript.feed(event)
    assert transcript.reading == ""


@pytest.mark.parametrize("count", [0, 1, 128, 129, 1000])
def test_a_long_answer_is_written_in_parts_for_which_others_do_not_wait_long(count: int) -> None:
    value = {"choices": [{"scores": [{"a": number, "b": [1.5]} for number in range(count)]}], "more": "x"}
    with mock.patch("tpiedge.api.formats.json_bytes", wraps=json_bytes) as written:
        assert json.loads(long_json(value)) == value
        assert long_json(value) == json_bytes(value)
    assert max(len(json_bytes(call.args[0])) for call in written.call_args_list) < 128 * 32
