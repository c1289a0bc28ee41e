"""How much memory a kept answer takes: about, and rather too much. Pure.

The objects of Python are counted, not what they say: a token of two bytes is an object with five fields, one of which
is a text of its own.
"""

from typing import Final

from tpiedge.api.records import AcceptedRequest
from tpiedge.api.service import AnswerEvent
from tpiedge.units import KIB
from tpiedge.wire.control import PromptScores, Token

__all__ = ["ANSWER_BYTES", "event_bytes", "request_bytes"]

ANSWER_BYTES: Final = 16 * KIB
"""Of an answer that says nothing: its request, its locks, and its file on the disk."""

_EVENT: Final = 320
_SCORE: Final = 128  # a pair of a number and a float
_NUMBER: Final = 36  # and its place in a tuple


def request_bytes(accepted: AcceptedRequest) -> int:
    """Of an answer of which nothing has come yet."""
    prompts = sum(len(choice.request.prompt_ids) * _NUMBER for choice in accepted.prompts)
    texts = sum(len(choice.echo.text) * 4 for choice in accepted.prompts if choice.echo is not None)
    return ANSWER_BYTES + prompts + texts


def event_bytes(event: AnswerEvent) -> int:
    """Of what comes next."""
    match event:
        case Token(logprobs=logprobs):
            return _EVENT + _SCORE * len(logprobs)
        case PromptScores(scores=scores, likeliest=likeliest):
            return _EVENT + _NUMBER * len(scores) + _SCORE * len(likeliest)
        case _:
            return _EVENT
