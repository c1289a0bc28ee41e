"""Events of a generation to the pieces of an answer, which may begin with its prompt, and what the pieces of a choice
say: text, thoughts and calls of tools; and the scores of their tokens, in the form that all APIs but the oldest share.
No input or output here."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, Self

from msgspec import Meta

from tpiedge.answers.generation import AnswerEvent
from tpiedge.errors import Cancelled
from tpiedge.master.journal import Paused, Resumed
from tpiedge.master.request_times import Reading
from tpiedge.model.call_reader import CallEnded, short_call_id
from tpiedge.model.speech import Said, SpeechForm, SpeechReader, SpokenText
from tpiedge.model.tokenizer import Detokenizer, TextWriter, Tokenizer
from tpiedge.wire.control import Embedding, Finished, PromptScores, Token
from tpiedge.wire.fields import MAX_PROMPT_TOKENS, U32

_PART: Final = 64
"""Tokens that are told at a time: with twenty scores each they are a millisecond's work."""
_MAX_TEXT: Final = 2**31 - 1
"""Characters of a prompt, which the size of a request's body bounds long before."""


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """The text of a prompt, and how many characters of it stand before each of its tokens."""

    text: Annotated[str, Meta(max_length=_MAX_TEXT)]
    offsets: Annotated[tuple[U32, ...], Meta(max_length=MAX_PROMPT_TOKENS)]

    @classmethod
    def of(cls, text: str, ids: tuple[int, ...], tokenizer: Tokenizer | None) -> Self:
        """Finds where the tokens `ids` begin. Takes a second for 32,000: for a thread."""
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
        echo: EchoedPrompt | None = None,
        marks: Sequence[str] = (),
        after: Sequence[int] = (),
    ) -> None:
        """`echo`: the prompt, where the answer begins with it. No stop string is looked for in it. `marks`: special
        tokens that are not left out. `after`: the tokens that its text goes on after, which are those of `echo`."""
        self.first_s: float | None = None
        """When the first token came."""
        self._writer = TextWriter(tokenizer, stops, after, marks)
        self._tokenizer = tokenizer
        self._echo = echo
        self._echoed_ids = after
        self._prompt_scores: list[tuple[tuple[int, float], ...]] = [
            ()
        ]  # nothing comes before the first token
        self._begun = len(echo.text) if echo else 0
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
        """Yields the prompt, where the answer begins with it and `event` is its first, which is fed then. Tokens are as
        those of answers: the likeliest first, and the token's own score at the end, if scores are wanted. A long prompt
        takes long: others are to have their turns between its pieces."""
        if self._echo is None or not isinstance(event, Token | Finished):
            return
        (echo, ids), self._echo = (self._echo, self._echoed_ids), None
        scored = self._prompt_scores if len(self._prompt_scores) == len(ids) else [()] * len(ids)
        for first in range(0, len(ids), _PART):
            numbers = range(first, min(first + _PART, len(ids)))
            begin = echo.offsets[first] if first else 0
            end = echo.offsets[numbers.stop] if numbers.stop < len(ids) else len(echo.text)
            tokens = tuple(Token(0, "", number, ids[number], scored[number]) for number in numbers)
            yield TextPiece(echo.text[begin:end], tokens, echo.offsets[first : numbers.stop])

    def feed(self, event: AnswerEvent) -> TextPiece | None:
        """The piece that `event` completes. Raises Cancelled where the service gave up the request."""
        match event:
            case PromptScores(first=first, scores=scores, likeliest=likeliest):
                self.reading = ""  # nothing more is told of it
                for number, score in enumerate(scores if self._echo else ()):
                    each = len(likeliest) // len(scores)
                    own = (self._echoed_ids[first + number], score)
                    self._prompt_scores.append((*likeliest[number * each : (number + 1) * each], own))
            case Token(token=token, logprobs=logprobs):
                self.count += 1
                self.reading = ""
                self.first_s = time.monotonic() if self.first_s is None else self.first_s
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
                # In words that clients know, too (`page/answer.js`, `cli/reach.py`).
                self.reading = f"reading {event.done_tokens} of {event.of_tokens} tokens"
                if event.left_s is not None:
                    self.reading += f", {math.ceil(event.left_s)} s left"
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


class SpokenChoice:
    """Reads what one choice says, whose pieces come in their order. Each is taken once, in one of these ways."""

    def __init__(self, form: SpeechForm) -> None:
        self._reader = SpeechReader(form)
        self._required = form.required

    def take(self, piece: TextPiece) -> list[Said]:
        """Returns what is certain with the piece."""
        said = self._reader.feed(piece.text)
        return said if piece.last is None else said + self._reader.finish(cut=piece.last == "length")

    def take_whole(self, piece: TextPiece) -> list[SpokenText | CallEnded]:
        """Returns the same for those who want a call once it has ended."""
        return [one for one in self.take(piece) if isinstance(one, SpokenText | CallEnded)]

    def take_objects(self, piece: TextPiece) -> Iterator[SpokenText | CallEnded]:
        """Yields the same for those who want arguments as objects: a call that did not come to its end is the text that
        the model wrote, or nothing where it was cut, or where the answer must be calls."""
        for said in self.take_whole(piece):
            if not isinstance(said, CallEnded) or not said.broken:
                yield said
            elif piece.last != "length" and not self._required:
                yield SpokenText(said.broken)

    def ending(self, piece: TextPiece) -> str | None:
        """Why the piece, which was taken, is the last one: an answer that ends with calls waits for what they give."""
        called = self._reader.calls and not self._reader.broken
        return "tool_calls" if piece.last == "stop" and called else piece.last


def call_id(answer: str, choice: int, call: int) -> str:
    """The id of a call: the same whenever it is told."""
    return short_call_id(f"{answer}/{choice}/{call}")


def joined(said: Sequence[SpokenText | CallEnded], *, thought: bool) -> str:
    """The thoughts, or the text without them."""
    return "".join(one.text for one in said if isinstance(one, SpokenText) and one.thought == thought)


class TokenScores:
    """Writes the scores of one answer. `logprobs`: how many of the likeliest tokens are told of each, None: of none
    anything; `without_bytes`: what is told as the bytes of one that has none."""

    def __init__(
        self, tokenizer: Tokenizer | None, logprobs: int | None, *, without_bytes: list[int] | None = None
    ) -> None:
        self._logprobs = logprobs
        self._without_bytes = without_bytes
        self._untold: list[dict[str, object]] = []
        # Each is asked for once: of a long prompt's scores most are of the same tokens.
        self._bytes = cache(lambda token: None if tokenizer is None else tokenizer.token_bytes(token))

    def told(self, tokens: Sequence[Token]) -> list[dict[str, object]]:
        """An object for each token, with those of the likeliest."""
        return [
            self._scored(token.token, own_score(token))
            | {"top_logprobs": [self._scored(*pair) for pair in token.logprobs[: self._logprobs]]}
            for token in tokens
        ]

    def hear(self, piece: TextPiece) -> None:
        """Notes the scores of its tokens, whose text may be shown later."""
        if self._logprobs is not None:
            self._untold += self.told(piece.tokens)

    def tell(self) -> list[dict[str, object]]:
        """Returns the scores that were heard and not told yet."""
        told, self._untold = self._untold, []
        return told

    def text(self, token: int) -> str:
        """The token's text with its leading space. A part of a character is written as OpenAI does:
        bytes:\\xe4\\xbd."""
        data = self._bytes(token)
        if data is None:
            return f"token_id:{token}"
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _scored(self, token: int, score: float | None) -> dict[str, object]:
        data = self._bytes(token)
        return {
            "token": self.text(token),
            "logprob": score,
            "bytes": self._without_bytes if data is None else list(data),
        }


def own_score(token: Token) -> float | None:
    """The log probability of the token itself, which is among those that came; None of a prompt's first token."""
    return next((score for other, score in token.logprobs if other == token.token), None)
