"""Events of a generation to the pieces of an answer. No input or output here."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tpiedge.api.prompt_echo import PromptEcho
from tpiedge.api.service import AnswerEvent, Reading
from tpiedge.errors import Cancelled
from tpiedge.master.journal import Paused, Resumed
from tpiedge.model.text import TextWriter
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import Embedding, Finished, PromptScores, Token


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of the answer: its text and the tokens that came with it, each with the character of the whole answer that
    it begins at. `last` says why it is the last one. `embedding`: the vector, in place of an answer."""

    text: str
    tokens: tuple[Token, ...]
    offsets: tuple[int, ...]
    last: str | None = None
    embedding: tuple[float, ...] = ()


class Transcript:
    """Laws: the texts of all pieces, joined, are those of the whole answer; so are the tokens; after the piece
    with `last` there is none. A token whose text is not certain yet waits for the piece that shows it."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stops: Sequence[str],
        echo: PromptEcho | None = None,
        marks: Sequence[str] = (),
        after: Sequence[int] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`echo`: the prompt, where the answer begins with it. No stop string is looked for in it. `marks`: special
        tokens that are not left out. `after`: the tokens that its text goes on after. `now` gives seconds."""
        self._now = now
        self.first_s: float | None = None
        """When the first token came."""
        self._writer = TextWriter(tokenizer, stops, after, marks)
        self._tokenizer = tokenizer
        self._echo = echo
        self._begun = len(echo.prompt.text) if echo else 0
        self._held: list[tuple[Token, int]] = []
        self._embedding: tuple[float, ...] = ()
        self.count = 0
        """Tokens of the answer so far."""
        self.finished: Finished | None = None
        """What rank 0 said at the end; None before it, and where a stop string ended the answer."""
        self.paused = ""
        """Why it pauses, while it does."""
        self.reading = ""
        """How far its prompt is read, while that is told."""
        self.pauses = 0
        self.paused_s = 0.0
        """How often it paused, and for how long in all, the pause that lasts not included."""

    @property
    def stop(self) -> str:
        """The stop string that ended the answer; "" where none did."""
        return self._writer.stop

    def before(self, event: AnswerEvent) -> Iterator[TextPiece]:
        """The prompt, where the answer begins with it and `event` is its first, which is fed then. A long one takes
        long: others are to have their turns between its pieces."""
        if self._echo is not None and isinstance(event, Token | Finished):
            echo, self._echo = self._echo, None
            for text, tokens, offsets in echo.parts():
                yield TextPiece(text, tokens, offsets)

    def feed(self, event: AnswerEvent) -> TextPiece | None:
        """The piece that `event` completes. Raises Cancelled where the service gave up the request."""
        match event:
            case PromptScores():
                self.reading = ""  # nothing more is told of it
                if self._echo is not None:
                    self._echo.take(event)
            case Token(token=token, logprobs=logprobs):
                self.count += 1
                self.reading = ""
                self.first_s = self._now() if self.first_s is None else self.first_s
                before = self._writer.length
                text, stopped = self._writer.push(token)
                self._held.append((event, self._begin(token, before) if logprobs else before))
                if stopped:
                    return self._piece(text, "stop")
                return self._piece(text, None) if text or self._tokenizer is None else None
            case Embedding(values=values):
                self._embedding = values
            case Paused(why=why):
                self.paused, self.reading = why, ""
            case Reading():
                self.reading = _told(event)
            case Resumed(paused_s=paused_s):
                self.paused = ""
                self.pauses += 1
                self.paused_s += paused_s
            case Finished(reason="cancel"):
                raise Cancelled("the request was cancelled: the server is shutting down or gave it up")
            case Finished(reason=reason):
                self.finished = event
                text, stopped = self._writer.finish()
                return self._piece(text, "stop" if stopped else reason)
        return None

    def _begin(self, token: int, before: int) -> int:
        """Where the text of `token` begins, which made the answer longer than `before`, or did not. The bytes of an
        unfinished character before it may have become text with it; a space at the answer's start is not shown."""
        after = self._writer.length
        if self._tokenizer is None or after == before:
            return before
        own = self._tokenizer.token_bytes(token) or b""
        return max(before, after - len(own.decode(errors="replace")))

    def _piece(self, text: str, last: str | None) -> TextPiece:
        held, self._held = self._held, []
        tokens, offsets = (token for token, _ in held), (self._begun + offset for _, offset in held)
        # Of thousands of texts no vector is kept after it was sent.
        embedding, self._embedding = self._embedding, ()
        return TextPiece(text, tuple(tokens), tuple(offsets), last, embedding)


def _told(reading: Reading) -> str:
    """In words that clients know, too (`page/answer.js`, `cli/reach.py`)."""
    told = f"reading {reading.done_tokens} of {reading.of_tokens} tokens"
    return told if reading.left_s is None else f"{told}, {math.ceil(reading.left_s)} s left"
