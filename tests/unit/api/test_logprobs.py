import pytest

from tests.unit.model.vocabularies import TOKENIZERS
from tpiedge.api.asked import Choice, FormatName, Reply
from tpiedge.api.openai import OpenAIFormat
from tpiedge.api.records import AcceptedRequest
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import Finished, Token
from tpiedge.wire.requests import GenerationRequest

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


def test_a_token_stands_in_the_answer_where_its_offset_says(tokenizer: Tokenizer) -> None:
    text, scores = scores_of(tokenizer, tokenizer.encode(TEXT, add_special=False))
    assert text == TEXT
    for token, offset in zip(scores["tokens"], scores["text_offset"], strict=True):
        if token.startswith("bytes:"):
            assert text[offset] in "你好"
        else:
            shown = token if offset else token.removeprefix(" ")  # an answer begins without it
            assert text[offset : offset + len(shown)] == shown
    assert scores["text_offset"] == sorted(scores["text_offset"])


def test_parts_of_characters_are_told_apart_and_have_their_bytes(tokenizer: Tokenizer) -> None:
    first, second = id_of(tokenizer, "<0xE4>", "\u00e4"), id_of(tokenizer, "<0xE5>", "\u00e5")
    _, scores = scores_of(tokenizer, [first], second)
    assert list(scores["top_logprobs"][0]) == [r"bytes:\xe4", r"bytes:\xe5"]
    _, scores = scores_of(tokenizer, [first], second, chat=True)
    assert [one["bytes"] for one in scores["content"][0]["top_logprobs"]] == [[0xE4], [0xE5]]
