"""The forms that an answer can have on the wire."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tpiedge.api.asked import Reply
from tpiedge.api.errors import ApiError
from tpiedge.api.transcript import TextPiece, Transcript
from tpiedge.model.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Everything about an answer except the answer. `created`: in seconds since 1970; `prompt_tokens`: of each prompt;
    `prompts`: of each choice, the number of its prompt."""

    id: str
    created: int
    model: str
    reply: Reply
    prompt_tokens: tuple[int, ...]
    prompts: tuple[int, ...]
    tokenizer: Tokenizer | None


class AnswerFormat(Protocol):
    """Makes the bytes of one answer, of which no other is made with it. Choices have their numbers from 0 on.

    What a stream consists of follows from the pieces and nothing else: so a later stream of the same answer can go on
    after any of its frames.
    """

    @property
    def stream_type(self) -> bytes:
        """The content type of a stream."""
        ...

    def opening(self) -> Sequence[bytes]:
        """Frames before any piece."""
        ...

    def frames(self, choice: int, piece: TextPiece) -> Sequence[bytes]:
        """Of the next piece of a choice."""
        ...

    def closing(self, transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        """Frames after all pieces, from the transcripts of all choices."""
        ...

    def alive(self, why: str) -> bytes:
        """What a client hears that waits for the next frame of a stream, and no part of the answer. `why` it waits,
        where that is known."""
        ...

    def broken(self, error: ApiError, tokens: int) -> bytes:
        """The last frame of a stream that fails after so many tokens."""
        ...

    def whole(self, pieces: Sequence[Sequence[TextPiece]], transcripts: Sequence[Transcript]) -> object:
        """An answer that is not streamed, of the pieces of each choice, as JSON."""
        ...

    def failure(self, error: ApiError, tokens: int) -> object:
        """The same where it fails after its beginning."""
        ...
