"""Events of a generation to the pieces of an answer. No input or output here."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpiedge.api.service import Event
from tpiedge.errors import Cancelled
from tpiedge.model.text import TextWriter
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import Finished, Token

__all__ = ["Piece", "Transcript"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the answer: its text and the tokens that came with it. `last` says why it is the last one."""

    text: str
    tokens: tuple[Token, ...]
    last: str | None = None


class Transcript:
    """Laws: the texts of all pieces, joined, are those of the whole answer; so are the tokens; after the piece
    with `last` there is none. A token whose text is not certain yet waits for the piece that shows it."""

    def __init__(self, tokenizer: Tokenizer | None, stops: Sequence[str]) -> None:
        self._writer = TextWriter(tokenizer, stops)
        self._shows_text = tokenizer is not None
        self._held: list[Token] = []
        self.count = 0
        """Tokens of the answer so far."""

    def feed(self, event: Event) -> Piece | None:
        """The piece that `event` completes. Raises Cancelled where the service gave up the request."""
        match event:
            case Token(token=token):
                self.count += 1
                self._held.append(event)
                text, stopped = self._writer.push(token)
                if stopped:
                    return self._piece(text, "stop")
                return self._piece(text, None) if text or not self._shows_text else None
            case Finished(reason="cancel"):
                raise Cancelled("the request was cancelled: the server is shutting down or gave it up")
            case Finished(reason=reason):
                text, stopped = self._writer.finish()
                return self._piece(text, "stop" if stopped else reason)
        return None

    def _piece(self, text: str, last: str | None) -> Piece:
        tokens, self._held = tuple(self._held), []
        return Piece(text, tokens, last)
