"""How much memory a kept answer takes: about, and rather too much. Pure.

The objects of Python are counted, not what they say: a token of two bytes is an object with five fields, one of which
is a text of its own.
"""

from collections.abc import Iterator
from typing import Final

from tpiedge.api.records import AcceptedRequest
from tpiedge.api.service import AnswerEvent
from tpiedge.units import KIB
from tpiedge.wire.control import PromptScores, Token

ANSWER_BYTES: Final = 16 * KIB
"""Of an answer that says nothing: its request, its locks, and its file on the disk."""

_CHOICE: Final = 3 * KIB  # what looks for stop strings in it
_EVENT: Final = 320
_SCORE: Final = 128  # a pair of a number and a float
_NUMBER: Final = 36  # and its place in a tuple
_TEXT: Final = 96  # and its place in a tuple
_CHARACTER: Final = 4


def request_bytes(accepted: AcceptedRequest) -> int:
    """Of an answer of which nothing has come yet."""
    requests = [choice.request for choice in accepted.prompts]
    prompts = sum(len(one.prompt_ids) * _NUMBER + len(one.sampling.logit_bias) * _SCORE for one in requests)
    texts = sum(_TEXT + _CHARACTER * len(text) for text in _texts(accepted))
    return ANSWER_BYTES + _CHOICE * accepted.each * len(requests) + prompts + texts


def _texts(accepted: AcceptedRequest) -> Iterator[str]:
    """What its client wrote, or what was made of that."""
    reply = accepted.reply
    yield from (reply.echo, *reply.stops, *reply.tools, *reply.namespaces)
    for some in reply.texts:
        yield from some
    for choice in accepted.prompts:
        if choice.echo is not None:
            yield choice.echo.text
        if choice.request.grammar is not None:
            yield choice.request.grammar.text


def event_bytes(event: AnswerEvent) -> int:
    """Of what comes next."""
    match event:
        case Token(logprobs=logprobs):
            return _EVENT + _SCORE * len(logprobs)
        case PromptScores(scores=scores, likeliest=likeliest):
            return _EVENT + _NUMBER * len(scores) + _SCORE * len(likeliest)
        case _:
            return _EVENT
