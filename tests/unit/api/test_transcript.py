import json
from unittest import mock

import pytest

from tests.unit.model.vocabularies import TOKENIZERS
from tpiedge.api.formats import json_bytes, long_json
from tpiedge.api.openai import OpenAIFormat
from tpiedge.api.parsed import Choice, FormatName, Reply
from tpiedge.api.records import AcceptedRequest
from tpiedge.api.transcript import Transcript
from tpiedge.master.journal import Paused
from tpiedge.master.request_times import Reading
from tpiedge.model.tokenizer import TextWriter, Tokenizer
from tpiedge.wire.control import Finished, PromptScores, Token
from tpiedge.wire.requests import GenerationRequest


@pytest.mark.parametrize(
    "event",
    [Token(1, "r", 0, 5, ()), PromptScores(1, "r", 1, (-1.0,), ()), Paused("dell-1 was lost")],
    ids=["a token", "scores of the prompt", "a pause"],
)
def test_prompt_progress_is_shown_until_another_event(
    event: Token | PromptScores | Paused,
) -> None:
    transcript = Transcript(TextWriter(None, ()), None)
    transcript.feed(Reading(300, 900, 100.0, 6.0))
    assert transcript.reading == "reading 300 of 900 tokens, 6 s left"
    transcript.feed(event)
    assert transcript.reading == ""


@pytest.mark.parametrize("count", [0, 1, 128, 129, 1000])
def test_long_answer_is_serialised_in_small_parts(count: int) -> None:
    value = {"choices": [{"scores": [{"a": number, "b": [1.5]} for number in range(count)]}], "more": "x"}
    with mock.patch("tpiedge.api.formats.json_bytes", wraps=json_bytes) as written:
        assert json.loads(long_json(value)) == value
        assert long_json(value) == json_bytes(value)
    assert max(len(json_bytes(call.args[0])) for call in written.call_args_list) < 128 * 32


TEXT = "the house and 你好 the cat"


@pytest.fixture(params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def scores_of(tokenizer: Tokenizer, ids: list[int], *others: int, chat: bool = False) -> tuple[str, dict]:
    """Returns the answer's text and its log probabilities. Each token is the most probable one, before `others`."""
    form: FormatName = "chat" if chat else "completion"
    reply, prompt = Reply(form, False, False, 2, (), False), Choice(GenerationRequest("r-1", (1,), 9))
    written = OpenAIFormat(AcceptedRequest("r-1", (prompt,), 1, reply, 0, "babbler", ""), tokenizer)
    (transcript,), pieces = written.transcripts, []
    for index, token in enumerate(ids):
        scores = tuple((one, -0.5 - rank) for rank, one in enumerate([token, *others]))
        pieces.append(transcript.feed(Token(1, "r-1", index, token, scores)))
    pieces.append(transcript.feed(Finished(1, "r-1", "length", 1, len(ids), 0, len(ids))))
    (choice,) = written.whole([[piece for piece in pieces if piece is not None]])["choices"]
    return choice["message"]["content"] if chat else choice["text"], choice["logprobs"]


def id_of(tokenizer: Tokenizer, *spellings: str) -> int:
    return next(found for one in spellings if (found := tokenizer.token_id(one)) is not None)


def test_text_offset_points_at_its_token(tokenizer: Tokenizer) -> None:
    text, scores = scores_of(tokenizer, tokenizer.encode(TEXT, add_special=False))
    assert text == TEXT
    for token, offset in zip(scores["tokens"], scores["text_offset"], strict=True):
        if token.startswith("bytes:"):
            assert text[offset] in "你好"
        else:
            shown = token if offset else token.removeprefix(" ")  # an answer begins without it
            assert text[offset : offset + len(shown)] == shown
    assert scores["text_offset"] == sorted(scores["text_offset"])


def test_partial_character_tokens_keep_their_bytes(tokenizer: Tokenizer) -> None:
    first, second = id_of(tokenizer, "<0xE4>", "\u00e4"), id_of(tokenizer, "<0xE5>", "\u00e5")
    _, scores = scores_of(tokenizer, [first], second)
    assert list(scores["top_logprobs"][0]) == [r"bytes:\xe4", r"bytes:\xe5"]
    _, scores = scores_of(tokenizer, [first], second, chat=True)
    assert [one["bytes"] for one in scores["content"][0]["top_logprobs"]] == [[0xE4], [0xE5]]
