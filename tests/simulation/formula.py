"""The model of the simulation: each token, score and vector follows from the request and nothing else."""

from collections.abc import Sequence
from zlib import crc32

from tpiedge.wire.control import FinishReason
from tpiedge.wire.requests import GenerationRequest

#: Ends an answer.
STOP = 0
#: A prompt that begins with it kills every node that computes it.
POISON = 666
_VOCABULARY = 23


def next_token(request: GenerationRequest, answer: Sequence[int]) -> int:
    """The token that follows `answer`. A wrong token before it makes every later one another."""
    text = f"{request.prompt_ids} {tuple(answer)} {request.sampling.seed}"
    return crc32(text.encode()) % _VOCABULARY


def ends(request: GenerationRequest, answer: Sequence[int]) -> FinishReason | None:
    """Returns why nothing follows `answer`; None if something does."""
    if answer and answer[-1] in request.stop_ids:
        return "stop"
    return "length" if len(answer) >= request.max_tokens else None


def scores(request: GenerationRequest) -> tuple[float, ...]:
    ids = request.prompt_ids
    return tuple(-(crc32(f"{ids[: place + 1]}".encode()) % 64) / 8 for place in range(1, len(ids)))


def vector(request: GenerationRequest) -> tuple[float, ...]:
    return tuple(float(crc32(f"{request.prompt_ids} {place}".encode()) % 16) for place in range(4))
