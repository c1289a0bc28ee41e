"""Events of a generation to the pieces of an answer, which may begin with its prompt. No input or output here."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Self

from msgspec import Meta

from tpiedge.answers.generation import AnswerEvent
from tpiedge.errors import Cancelled
from tpiedge.master.journal import Paused, Resumed
from tpiedge.master.request_times import Reading
from tpiedge.model.tokenizer import Detokenizer, TextWriter, Tokenizer
from tpiedge.wire.control import Embedding, Finished, PromptScores, Token
from tpiedge.wire.fields import U32
from tpiedge.wire.limits import MAX_PROMPT_TOKENS

_PART: Final = 64
"""Tokens that are told at a time: with twenty scores each they are a millisecond's work."""
_MAX_TEXT: Final = 2**31 - 1
"""Characters of a prompt, which the size of a request's body bounds long before."""

EchoPart = tuple[str, tuple[Token, ...], tuple[int, ...]]
"""A text, its tokens, and where each of them begins in the whole text."""


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """What stands for a prompt's tokens, and how many characters of it before each of them."""

    text: Annotated[str, Meta(max_length=_MAX_TEXT)]
    offsets: Annotated[tuple[U32, ...], Meta(max_length=MAX_PROMPT_TOKENS)]

    @classmethod
    def of(cls, text: str, ids: tuple[int, ...], tokenizer: Tokenizer | None) -> Self:
        """Of the tokens `ids`. Takes a second for 32,000: for a thread."""
        if tokenizer is None:
            return cls(text, (0,) * len(ids))
        writer, begins, parts, length = Detokenizer(tokenizer, skip_special=False), [], [], 0
        for token in ids:
            begins.append(length)
            parts.append(writer.push(token))
            length += len(parts[-1])
        whole = "".join(parts) + writer.finish()
        # Tokens that the tokenizer itself put before the text, and a space, do not stand in it.
        added = len(whole) - len(text) if whole.endswith(text) else 0
        return cls(text, tuple(min(max(0, begin - added), len(text)) for begin in begins))


class PromptEcho:
    """Collects the scores of a prompt, where they are wanted, which all come before the answer."""

    def __init__(self, prompt: EchoedPrompt, ids: tuple[int, ...]) -> None:
        """`ids`: the prompt's tokens."""
        self.prompt = prompt
        self.ids = ids
        self._logprobs: list[tuple[tuple[int, float], ...]] = [()]  # nothing comes before the first token

    def take(self, scores: PromptScores) -> None:
        """The next part."""
        each = len(scores.likeliest) // len(scores.scores)
        for number, score in enumerate(scores.scores):
            own = (self.ids[scores.first + number], score)
            self._logprobs.append((*scores.likeliest[number * each : (number + 1) * each], own))

    def parts(self) -> Iterator[EchoPart]:
        """All of it. Tokens as those of answers: the likeliest first, and the token's own score at the end; without any
        score for the first one."""
        text, ids, offsets = self.prompt.text, self.ids, self.prompt.offsets
        scored = self._logprobs if len(self._logprobs) == len(ids) else [()] * len(ids)
        for first in range(0, len(ids), _PART):
            numbers = range(first, min(first + _PART, len(ids)))
            begin = offsets[first] if first else 0
            end = offsets[numbers.stop] if numbers.stop < len(ids) else len(text)
            tokens = tuple(Token(0, "", number, ids[number], scored[number]) for number in numbers)
            yield text[begin:end], tokens, offsets[first : numbers.stop]


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
